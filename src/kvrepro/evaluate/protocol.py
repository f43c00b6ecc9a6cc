"""From one example to rows: GateSight Appendix A's protocol for eviction, the same checks for admission.

One prefill serves all eviction methods and kept fractions of a context; their children decode as one batch. Each
answer carries its checks: entries held equal the budget, positions continue, bytes held, hashes of what was asked, and
at kept fraction 1.0 the tokens of the dense model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from kvrepro.benchmarks.example import Example, Prompt, render
from kvrepro.cache.admitted import admitted_cache
from kvrepro.cache.fork import Children, fork
from kvrepro.errors import InputError
from kvrepro.evaluate.decode import Answer, answer
from kvrepro.methods.admission import Admission
from kvrepro.methods.allocation import allocate, keep_top, per_head_budget
from kvrepro.methods.eviction import Eviction
from kvrepro.methods.eviction.full import Full
from kvrepro.models.attention import NAME
from kvrepro.models.capture import Prefill, prefill
from kvrepro.models.loading import LoadedModel

Scorer = Callable[[str, str, tuple[str, ...]], float]  # (task, prediction, references) -> score in [0, 1]


@dataclass(frozen=True)
class Arm:
    """One method at one kept fraction, as the rows name it."""

    name: str
    method: Eviction | Admission
    kept: float
    allocation: str | None = None  # overrides the eviction method's own rule

    @property
    def rule(self) -> str:
        """Allocation in use; empty for an admission method, which has none."""
        return self.allocation or getattr(self.method, "allocation", "")

    def options(self, artifacts: Iterable[str] = ()) -> str:
        """The method's options as JSON, without paths of artefacts."""
        options = {k: v for k, v in asdict(self.method).items() if k not in artifacts}
        return json.dumps(options | ({"allocation": self.rule} if self.rule else {}), sort_keys=True)


@dataclass
class Asked:
    """Answers of one arm to all questions of an example, with what the checks need."""

    arm: Arm
    entries: torch.Tensor  # [attention_layers, kv_heads]
    expected: torch.Tensor
    bytes_held: int
    positions_continue: bool
    answers: list[Answer] = field(default_factory=list)


def evaluate(
    lm: LoadedModel, examples: Iterable[Example], arms: list[Arm], score: Scorer, base: dict[str, Any], batch: int = 64
) -> Iterator[dict[str, Any]]:
    """Rows for every example, question and arm, and two references at budget 1.0: ``dense``, transformers' own cache
    and attention, and ``full``, the compacted child that keeps everything and must answer with the same tokens.

    ``base`` gives the columns paper, experiment and tier; ``batch`` bounds how many children decode together. An
    example that raises InputError (a score that is not finite, a context too long) stops the evaluation, naming it.
    """
    for example in examples:
        yield from evaluate_example(lm, example, arms, score, base, batch)


def evaluate_example(
    lm: LoadedModel, example: Example, arms: list[Arm], score: Scorer, base: dict[str, Any], batch: int
) -> Iterator[dict[str, Any]]:
    """Rows of one example; see :func:`evaluate`."""
    prompt = render(example, lm.tokenizer, lm.chat)
    label = f"{example.benchmark}/{example.task} item {example.item}"
    try:
        parent = prefill(lm, torch.tensor(prompt.prefix), prompt.protected)
        dense = _dense(lm, parent, prompt, example)
        asked = [dense]
        evictions = [Arm("full", Full(), 1.0), *(a for a in arms if isinstance(a.method, Eviction))]
        plans = sorted(_plans(parent, evictions, label), key=lambda plan: plan[0].kept)  # little padding in a batch
        for i in range(0, len(plans), batch):
            asked += _ask_children(lm, parent, prompt, example, plans[i : i + batch])
        asked += [_ask_admitted(lm, prompt, example, a) for a in arms if isinstance(a.method, Admission)]
    except InputError as error:
        raise InputError(f"{label}: {error}") from error
    for result in asked:
        for number, (question, given) in enumerate(zip(example.questions, result.answers, strict=True)):
            text = lm.tokenizer.decode(given.tokens, skip_special_tokens=True)
            failed = []
            if not torch.equal(result.entries, result.expected):
                failed.append("kept_entries")
            if not result.positions_continue:
                failed.append("positions")
            if result.arm.kept == 1.0 and given.tokens != dense.answers[number].tokens:
                failed.append("identity")
            yield base | {
                "model": lm.name,
                "method": result.arm.name,
                "options": result.arm.options(getattr(result.arm.method, "artifacts", ())),
                "budget": result.arm.kept,
                "task": example.task,
                "item": example.item,
                "question": number,
                "metric": "score",
                "value": score(example.task, text, question.references),
                "seed": example.seed,
                "n_tokens": parent.n,
                "protected": parent.protected,
                "kept_entries": int(result.entries.sum()),
                "bytes_held": result.bytes_held,
                "prompt_sha256": prompt.text_sha256,
                "token_sha256": prompt.token_sha256,
                "finish_reason": given.finish_reason,
                "prediction": text,
                "ok": not failed,
                "failed_checks": ",".join(failed),
            }


def _dense(lm: LoadedModel, parent: Prefill, prompt: Prompt, example: Example) -> Asked:
    """The reference: transformers' own cache and attention, an independent path from the children's."""
    g = parent.geometry
    entries = torch.full((len(g.attention_layers), g.kv_heads), parent.n)
    size = sum(k.numel() * k.element_size() * 2 for k in parent.keys)
    asked = Asked(Arm("dense", Full(), 1.0), entries, entries, size, positions_continue=True)
    lm.model.set_attn_implementation("sdpa")
    try:
        for ids, question in zip(prompt.questions, example.questions, strict=True):
            cache = copy.deepcopy(parent.cache)
            asked.answers += answer(lm, cache, parent.n, ids, question.max_new_tokens)
    finally:
        lm.model.set_attn_implementation(NAME)
    return asked


def _plans(parent: Prefill, arms: list[Arm], label: str) -> Iterator[tuple[Arm, list[torch.Tensor], torch.Tensor]]:
    """Per arm its masks and the entries it must hold; a method scores a context once for all its kept fractions."""
    g, scored = parent.geometry, {}
    for arm in arms:
        key = id(arm.method)
        if key not in scored:
            scored[key] = arm.method.score(parent), arm.method.layer_weights(parent)
        scores, weights = scored[key]
        size = parent.n, parent.protected, len(g.attention_layers), g.kv_heads
        counts = allocate(arm.rule, arm.kept, *size, weights, scores)
        masks = keep_top(scores, counts, parent.protected, f"{label}, {arm.name}")
        yield arm, masks, counts + parent.protected


def _ask_children(lm, parent: Prefill, prompt: Prompt, example: Example, plans) -> list[Asked]:
    """Fork the plans' children and put every question to the whole batch."""
    children = fork(lm, parent, [masks for _, masks, _ in plans])
    entries, held = children.entries().cpu(), children.bytes_held().tolist()
    asked = [
        Asked(arm, entries[row], expected, held[row], positions_continue=True)
        for row, (arm, _, expected) in enumerate(plans)
    ]
    for ids, question in zip(prompt.questions, example.questions, strict=True):
        given = answer(lm, children.cache, parent.n, ids, question.max_new_tokens, rows=len(plans))
        continues = _positions_continue(children, parent.n)
        for row, result in enumerate(asked):
            result.answers.append(given[row])
            result.positions_continue &= continues
        children.rewind()
    return asked


def _positions_continue(children: Children, n: int) -> bool:
    """Whether the entries written after the context carry the positions n, n + 1, ... without a gap."""
    for layer in children.attention:
        new = layer.appended_positions()
        if not torch.equal(new, torch.arange(n, n + new.shape[-1], device=new.device).expand_as(new)):
            return False
    return True


def _ask_admitted(lm: LoadedModel, prompt: Prompt, example: Example, arm: Arm) -> Asked:
    """Prefill under the admission policy, so that refused entries are never written, then ask."""
    n = len(prompt.prefix)
    policy = arm.method.policy(arm.kept, n)
    cache = admitted_cache(lm, policy)
    prefill(lm, torch.tensor(prompt.prefix), prompt.protected, cache=cache)
    held = Children(cache, lm.geometry.gdn_layers, lm.geometry.attention_layers)
    entries = held.entries()[0].cpu()
    expected = entries if policy.entries is None else torch.full_like(entries, policy.entries)
    newest = all(int(layer.positions.max()) == n - 1 for layer in held.attention)
    asked = Asked(arm, entries, expected, int(held.bytes_held()[0]), positions_continue=newest)
    for ids, question in zip(prompt.questions, example.questions, strict=True):
        asked.answers += answer(lm, copy.deepcopy(cache), n, ids, question.max_new_tokens)
    return asked


def check_budgets(arms: list[Arm], shortest: int, protected: int) -> None:
    """Raise InputError, before a model runs, when an arm has no budget in a context of ``shortest`` tokens."""
    for arm in arms:
        if isinstance(arm.method, Admission):
            arm.method.policy(arm.kept, shortest)
        else:
            per_head_budget(arm.kept, shortest, protected)
