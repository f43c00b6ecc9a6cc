"""Decoding of questions on caches that hold their contexts, many rows as one batch, greedily or by given draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvrepro.benchmarks.example import Sampling
from kvrepro.cache.bounded import Bounds
from kvrepro.models.capture import rotary_positions
from kvrepro.models.loading import LoadedModel
from kvrepro.models.sampling import draws_of, sample

LOOK_EVERY = {"cpu": 1, "cuda": 8}  #: steps between looks at whether all rows are done, each of which waits for the GPU
PLAIN_STEPS = 2  #: steps before one is captured: libraries have then allocated what they need


@dataclass(frozen=True)
class Answer:
    """Generated token ids without the end-of-sequence token, why generation ended, ``eos`` or ``length``, and the
    positions to which the model rotated what it was fed, of every axis, question first."""

    tokens: tuple[int, ...]
    finish_reason: str
    positions: torch.Tensor = field(compare=False)  #: [axes, fed]


@dataclass(frozen=True)
class Posed:
    """A question that was fed to each of a cache's rows: the first tokens of the answers ``[rows, 1]``, the position
    that comes next, the positions that the question was rotated to ``[axes, rows, t]``, the longest answer, and how it
    is drawn, None where it is greedy."""

    first: torch.Tensor
    following: int
    positions: torch.Tensor
    max_new_tokens: int
    sampling: Sampling | None = None


@torch.no_grad()
def feed(lm: LoadedModel, cache: Any, tokens: torch.Tensor, rows: int = 1, bounds: Bounds | None = None) -> None:
    """Run the model over a context ``[n]``, in each of the cache's ``rows``, for the sake of what the cache then
    holds."""
    for piece in _pieces(tokens.expand(rows, -1).to(lm.device), bounds):
        lm.model(input_ids=piece, past_key_values=cache, use_cache=True, logits_to_keep=1)


def _pieces(tokens: torch.Tensor, bounds: Bounds | None) -> Iterable[torch.Tensor]:
    return [tokens] if bounds is None else bounds.pieces(tokens)


def _fed(
    lm: LoadedModel,
    cache: Any,
    start: int,
    tokens: Sequence[int],
    rows: int,
    kept: int,
    most: int,
    bounds: Bounds | None = None,
    sampling: Sampling | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Feed ``tokens`` from position ``start`` on to each of the cache's ``rows``: the first choices of an answer of
    ``most`` tokens after the last ``kept`` of them, one where there are bounds, ``[rows, kept]``, and the positions
    they were rotated to, ``[axes, rows, t]``."""
    ids = torch.tensor(tokens, device=lm.device).expand(rows, -1)
    with rotary_positions(lm, len(tokens)) as seen:
        for piece in _pieces(ids, bounds):
            positions = torch.arange(start, start + piece.shape[1], device=lm.device).expand(rows, -1)
            out = lm.model(
                input_ids=piece, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=kept
            )
            start += piece.shape[1]
    logits = out.logits[:, -kept:]
    if sampling is None:
        return logits.argmax(-1), seen.of_rows(rows)
    draws = draws_of(sampling.seed, most)[:kept].to(lm.device).repeat(rows)
    return sample(logits.flatten(0, 1).float(), draws, sampling).view(rows, kept), seen.of_rows(rows)


@torch.no_grad()
def ask(
    lm: LoadedModel,
    cache: Any,
    start: int,
    question: list[int],
    max_new_tokens: int,
    rows: int = 1,
    bounds: Bounds | None = None,
    sampling: Sampling | None = None,
) -> Posed:
    """Feed ``question`` at position ``start`` to each of the cache's ``rows``, within its ``bounds``. All rows have the
    same draws."""
    first, positions = _fed(lm, cache, start, question, rows, 1, max_new_tokens, bounds, sampling)
    return Posed(first, start + len(question), positions, max_new_tokens, sampling)


@torch.no_grad()
def confirmed(
    lm: LoadedModel,
    cache: Any,
    start: int,
    question: list[int],
    max_new_tokens: int,
    expected: Answer,
    sampling: Sampling | None = None,
) -> Answer | None:
    """``expected`` as the answer of a cache of one row, None where the answer is another one.

    The question and what is expected are fed at once: decoding gives these tokens exactly when each of them is chosen
    after those before it, by the largest logit or by its own draw, and so is the end.
    """
    tokens, ended = expected.tokens, expected.finish_reason == "eos"
    length = len(tokens) + ended
    if not 0 < length <= max_new_tokens or (not ended and length < max_new_tokens):
        return None
    fed = [*question, *tokens[: length - 1]]
    chosen, positions = _fed(lm, cache, start, fed, 1, length, max_new_tokens, sampling=sampling)
    given = chosen[0].tolist()
    if given[: len(tokens)] != list(tokens) or (ended and given[-1] not in lm.eos):
        return None
    return Answer(tokens, expected.finish_reason, positions[:, 0])


@torch.no_grad()
def decode(
    lm: LoadedModel, cache: Any, posed: Sequence[Posed], steady: bool = False, bounds: Bounds | None = None
) -> list[Answer]:
    """Answers of the rows of ``cache`` to their questions, ``posed`` in the order of the rows.

    A row is finished at an end-of-sequence token, and decoding stops when all rows are. ``steady`` says that the cache
    changes its tensors in place, so that on a GPU a step can be replayed as a CUDA graph. ``bounds`` are enforced after
    every step.
    """
    eos = torch.tensor(sorted(lm.eos), device=lm.device)
    token, most = torch.cat([each.first for each in posed]), max(each.max_new_tokens for each in posed)
    starts = [torch.full_like(each.first, each.following) for each in posed]
    position, produced = torch.cat(starts), torch.full((len(token), most), int(eos[0]), device=lm.device)
    produced[:, :1] = token
    done = (token == eos).any(-1)
    slot = torch.ones(1, dtype=torch.long, device=lm.device)
    choose = _choosing(posed, most, lm.device)

    def step() -> None:
        out = lm.model(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token.copy_(choose(out.logits[:, -1], slot)[:, None])
        produced.index_copy_(1, slot, token)
        done.logical_or_((token == eos).any(-1))
        position.add_(1)
        slot.add_(1)
        if bounds is not None:
            bounds.look()

    taken, run = 1, _Replayed(step) if steady and lm.device.type == "cuda" else step
    with rotary_positions(lm, most) as seen:
        while taken < most and not (taken % LOOK_EVERY[lm.device.type] == 0 and done.all()):
            run()
            taken += 1
            if bounds is not None:
                bounds.enforce()
    decoded = seen.of_rows(len(token))[..., : taken - 1] if taken > 1 else None
    return _answers(posed, produced[:, :taken].cpu(), decoded, eos.cpu())


def _choosing(
    posed: Sequence[Posed], most: int, device: torch.device
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """What gives every row's token ``[rows]`` from its logits ``[rows, vocab]`` and the place of it in the answer, a
    tensor of one number."""
    if all(each.sampling is None for each in posed):
        return lambda logits, slot: logits.argmax(-1)
    sizes, draws = [len(each.first) for each in posed], torch.zeros(len(posed), most)
    for own, each in zip(draws, posed, strict=True):
        if each.sampling is not None:
            own[: each.max_new_tokens] = draws_of(each.sampling.seed, each.max_new_tokens)
    draws = draws.to(device)

    def choose(logits: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        now, chosen = draws.index_select(1, slot), []
        for each, own, part in zip(posed, now, logits.split(sizes), strict=True):
            greedy = each.sampling is None
            chosen.append(part.argmax(-1) if greedy else sample(part.float(), own.expand(len(part)), each.sampling))
        return torch.cat(chosen)

    return choose


def _answers(
    posed: Sequence[Posed], produced: torch.Tensor, decoded: torch.Tensor | None, eos: torch.Tensor
) -> list[Answer]:
    answers = []
    for each, own in ((question, row) for question in posed for row in range(len(question.first))):
        row = len(answers)
        tokens = produced[row, : each.max_new_tokens]
        ends = torch.isin(tokens, eos).nonzero()
        end = int(ends[0]) if len(ends) else len(tokens)
        positions = each.positions[:, own]
        if decoded is not None:  # the last token of an answer is not fed
            positions = torch.cat([positions, decoded[:, row, : min(end, len(tokens) - 1)]], -1)
        answers.append(Answer(tuple(tokens[:end].tolist()), "eos" if len(ends) else "length", positions))
    return answers


class _Replayed:
    """A step that reads and writes the same tensors at every call: some plain calls, then a CUDA graph of one."""

    def __init__(self, step: Callable[[], None]):
        self._step, self._calls = step, 0
        self._graph: torch.cuda.CUDAGraph | bool | None = None

    def __call__(self) -> None:
        self._calls += 1
        if self._calls <= PLAIN_STEPS:
            return self._step()
        if self._graph is None:
            self._graph = _captured(self._step)
        return self._graph.replay() if self._graph else self._step()


def _captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph | bool:
    """The step as a graph, recorded without being run; False where the model does what a graph cannot."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        print(f"decoding without a CUDA graph, which is slower: {str(error).splitlines()[0]}")
        return False
    return graph
