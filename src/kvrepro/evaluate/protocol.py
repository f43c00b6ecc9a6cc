"""From one example to rows: GateSight Appendix A's protocol for eviction, the same checks for admission and selection.

One prefill serves all arms without admission: their children, evicted to any kept fraction or whole, decode as one
batch. Arms with admission prefill under their own policies, several as one batch. Each answer carries its checks:
entries held equal the budget or what was admitted, the prefix is protected, the rest is gone, no token read more than
its selection's budget, the model was given the positions after the context, bytes held, hashes of what was asked, and
at kept fraction 1.0 the dense tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kvrepro.benchmarks.example import Example, Prompt, Question, render
from kvrepro.benchmarks.registry import Scorer
from kvrepro.cache.admitted import Policy, admitted_cache
from kvrepro.cache.fork import fork
from kvrepro.cache.ragged import EMPTY, bytes_held, entries_held
from kvrepro.cache.session import Session
from kvrepro.errors import InputError
from kvrepro.evaluate.arms import Arm
from kvrepro.evaluate.decode import Answer, answer, feed
from kvrepro.evaluate.reading import Reading
from kvrepro.methods.allocation import allocate, keep_top
from kvrepro.methods.eviction.full import Full
from kvrepro.models.attention import NAME
from kvrepro.models.capture import Prefill, prefill, rotary_positions
from kvrepro.models.loading import LoadedModel
from kvrepro.results import DENSE, FULL


@dataclass
class Asked:
    """Answers of one arm to all questions of an example, with what its checks found."""

    arm: Arm
    kept_entries: int
    bytes_held: int
    failed: set[str]  # checks of the cache that failed
    answers: list[Answer] = field(default_factory=list)


def evaluate(
    lm: LoadedModel,
    examples: Iterable[Example],
    arms: list[Arm],
    score: Scorer,
    base: dict[str, Any],
    batch: int = 64,
    together: int = 4,
) -> Iterator[dict[str, Any]]:
    """Rows for every example, question, arm and metric, and two references at budget 1.0: ``dense``, transformers' own
    cache and attention, and ``full``, the compacted child that keeps everything and must answer with the same tokens.

    ``base`` gives the columns paper, experiment and tier; ``batch`` bounds how many children decode together,
    ``together`` how many arms with admission prefill together. An
    example that raises InputError (a score that is not finite, a context too long) stops the evaluation, naming it.
    """
    for example in examples:
        yield from evaluate_example(lm, example, arms, score, base, batch, together)


def evaluate_example(
    lm: LoadedModel,
    example: Example,
    arms: list[Arm],
    score: Scorer,
    base: dict[str, Any],
    batch: int,
    together: int,
) -> Iterator[dict[str, Any]]:
    """Rows of one example; see :func:`evaluate`."""
    prompt = render(example, lm.tokenizer, lm.chat)
    label = f"{example.benchmark}/{example.task} item {example.item}"
    try:
        forked = [Arm(FULL, eviction=Full(), kept=1.0), *(a for a in arms if a.admission is None)]
        window = max(a.eviction.query_window for a in forked if a.eviction)
        parent = prefill(lm, torch.tensor(prompt.prefix), prompt.protected, query_window=max(window, 1))
        dense = _dense(lm, parent, prompt, example)
        asked = [dense]
        plans = sorted(_plans(parent, forked, label), key=lambda plan: plan[0].kept or 1.0)  # little padding in a batch
        for i in range(0, len(plans), batch):
            asked += _ask_children(lm, parent, prompt, example, plans[i : i + batch])
        admitted = sorted((a for a in arms if a.admission), key=lambda a: a.kept or 1.0)
        for i in range(0, len(admitted), together):
            asked += _ask_admitted(lm, prompt, example, admitted[i : i + together])
    except InputError as error:
        raise InputError(f"{label}: {error}") from error
    for result in asked:
        for number, (question, given) in enumerate(zip(example.questions, result.answers, strict=True)):
            text = lm.tokenizer.decode(given.tokens, skip_special_tokens=True)
            failed = set(result.failed)
            if result.arm.whole and given.tokens != dense.answers[number].tokens:
                failed.add("identity")
            judged = score(example, question, text)
            row = base | {
                "model": lm.name,
                "method": result.arm.name,
                "options": result.arm.options(),
                "budget": math.nan if result.arm.kept is None else result.arm.kept,
                "task": example.task,
                "item": example.item,
                "question": number,
                "seed": example.seed,
                "n_tokens": parent.n,
                "protected": parent.protected,
                "kept_entries": result.kept_entries,
                "bytes_held": result.bytes_held,
                "prompt_sha256": prompt.text_sha256,
                "token_sha256": prompt.token_sha256,
                "finish_reason": given.finish_reason,
                "prediction": text,
                "ok": not failed,
                "failed_checks": ",".join(sorted(failed)),
            }
            for metric, value in ({"score": judged} if isinstance(judged, float) else judged).items():
                yield row | {"metric": metric, "value": value}


def _ask_all(lm: LoadedModel, result: list[Asked], session: Session, n: int, prompt: Prompt, example: Example) -> None:
    """Put every question to all rows of a session, each row reading what its arm selects."""
    layers = dict(zip(lm.geometry.attention_layers, session.attention, strict=True))
    reading = Reading(layers, [asked.arm.selection for asked in result])
    for ids, question in zip(prompt.questions, example.questions, strict=True):
        _ask(lm, result, session.cache, n, ids, question)
        session.rewind()
    for asked, most in zip(result, reading.most, strict=True):
        if asked.arm.selection and most > asked.arm.selection.budget:
            asked.failed.add("selection")


def _ask(lm: LoadedModel, result: list[Asked], cache: Any, n: int, ids: list[int], question: Question) -> None:
    """Put a question to the rows of a cache, note the answers, and check that the model was given the positions after
    the context: n, n + 1, ..."""
    with rotary_positions(lm) as seen:
        given = answer(lm, cache, n, ids, question.max_new_tokens, rows=len(result))
    positions = torch.cat(seen, dim=1)
    for row, asked in enumerate(result):
        asked.answers.append(given[row])
        if not (positions == torch.arange(n, n + positions.shape[1])).all():
            asked.failed.add("positions")


def _dense(lm: LoadedModel, parent: Prefill, prompt: Prompt, example: Example) -> Asked:
    """The reference: transformers' own cache and attention, an independent path from the children's."""
    g = parent.geometry
    layers = [parent.cache.layers[i] for i in g.attention_layers]
    held = sum(layer.keys.shape[1] * layer.keys.shape[2] for layer in layers)
    size = sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in layers)
    asked = Asked(Arm(DENSE, eviction=Full(), kept=1.0), held, size, set())
    if held != len(layers) * g.kv_heads * parent.n:
        asked.failed.add("budget")
    lm.model.set_attn_implementation("sdpa")
    try:
        for ids, question in zip(prompt.questions, example.questions, strict=True):
            _ask(lm, [asked], copy.deepcopy(parent.cache), parent.n, ids, question)
    finally:
        lm.model.set_attn_implementation(NAME)
    return asked


def _plans(parent: Prefill, arms: list[Arm], label: str) -> Iterator[tuple[Arm, list[torch.Tensor]]]:
    """Per arm the masks of what it keeps; a method scores a context once for all its kept fractions."""
    g, scored = parent.geometry, {}
    for arm in arms:
        if arm.eviction is None:
            yield arm, [torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device) for keys in parent.keys]
            continue
        key = id(arm.eviction)
        if key not in scored:
            scored[key] = arm.eviction.score(parent), arm.eviction.layer_weights(parent)
        scores, weights = scored[key]
        size = parent.n, parent.protected, len(g.attention_layers), g.kv_heads
        counts = allocate(arm.rule, arm.kept, *size, weights, scores)
        yield arm, keep_top(scores, counts, parent.protected, f"{label}, {arm.name}")


def _ask_children(lm: LoadedModel, parent: Prefill, prompt: Prompt, example: Example, plans) -> list[Asked]:
    """Fork the plans' children and put every question to the whole batch."""
    children = fork(lm, parent, [masks for _, masks in plans])
    entries, size = entries_held(children.attention).flatten(1).sum(1).tolist(), bytes_held(children.attention).tolist()
    asked = [
        Asked(arm, entries[row], size[row], _failed_checks(children, row, parent, arm.kept))
        for row, (arm, _) in enumerate(plans)
    ]
    _ask_all(lm, asked, children, parent.n, prompt, example)
    return asked


def _failed_checks(children: Session, row: int, parent: Prefill, kept: float | None) -> set[str]:
    """What is wrong with a child, judged from its own tensors and GateSight §2, not from how it was made.

    ``budget``: the entries of the whole model, all of them where there is no kept fraction; ``protected``: the
    instruction prefix stands first in every head; ``compaction``: no head's tensors have room for more than the fullest
    of the batch, so nothing is only hidden.
    """
    n, prefix, layers = parent.n, parent.protected, children.attention
    failed = set()
    caches = len(layers) * parent.geometry.kv_heads
    budget = n if kept is None else prefix + round(kept * (n - prefix))
    if int(entries_held(layers)[row].sum()) != caches * budget:
        failed.add("budget")
    start = torch.arange(prefix, device=layers[0].positions.device)
    if any(not torch.equal(head[:prefix], start) for layer in layers for head in layer.positions[row]):
        failed.add("protected")
    return failed | _not_compact(layers)


def _not_compact(layers) -> set[str]:
    return {"compaction"} if any(layer.keys.shape[2] > int(layer.entries().max()) for layer in layers) else set()


def _ask_admitted(lm: LoadedModel, prompt: Prompt, example: Example, arms: list[Arm]) -> list[Asked]:
    """Prefill under the admission policies, so that refused entries are never written, then ask."""
    n = len(prompt.prefix)
    policies = [arm.admission.policy(arm.kept, n) for arm in arms]
    with admitted_cache(lm, policies) as cache:
        feed(lm, cache, torch.tensor(prompt.prefix), rows=len(arms))
        session = Session(cache, lm.geometry)
        layers = session.attention
        entries, size = entries_held(layers), bytes_held(layers).tolist()
        asked = [
            Asked(arm, int(entries[row].sum()), size[row], _failed_admission(session, row, policy, n))
            for row, (arm, policy) in enumerate(zip(arms, policies, strict=True))
        ]
        _ask_all(lm, asked, session, n, prompt, example)
    return asked


def _failed_admission(session: Session, row: int, policy: Policy, n: int) -> set[str]:
    """What is wrong with an admitted cache after its context.

    ``admission``: a head holds other positions than the local window and those that were admitted; ``budget``: it holds
    another number than the policy says; ``compaction``: as of a child.
    """
    layers, failed = session.attention, set()
    for layer in layers:
        local = torch.arange(n, device=layer.positions.device) >= n - policy.window
        wanted = torch.cat(layer.decisions, -1)[row] | local
        for held, want in zip(layer.positions[row], wanted, strict=True):
            if not torch.equal(held[held != EMPTY], want.nonzero()[:, 0]):
                failed.add("admission")
    if policy.entries is not None and (entries_held(layers)[row] != policy.entries).any():
        failed.add("budget")
    return failed | _not_compact(layers)
