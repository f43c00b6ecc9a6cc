"""From one example to rows: GateSight Appendix A's protocol for eviction, the same checks for admission.

One prefill serves all eviction methods and kept fractions of a context; their children decode as one batch. Each
answer carries its checks: entries held equal the budget, the prefix is protected, the rest is gone, the model was given
the positions after the context, bytes held, hashes of what was asked, and at kept fraction 1.0 the dense tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kvrepro.benchmarks.example import Example, Prompt, Question, render
from kvrepro.cache.admitted import admitted_cache
from kvrepro.cache.fork import Children, fork
from kvrepro.cache.ragged import bytes_held, entries_held
from kvrepro.errors import InputError
from kvrepro.evaluate.arms import Arm
from kvrepro.evaluate.decode import Answer, answer, feed
from kvrepro.methods.admission import Admission
from kvrepro.methods.allocation import allocate, keep_top
from kvrepro.methods.eviction import Eviction
from kvrepro.methods.eviction.full import Full
from kvrepro.models.attention import NAME
from kvrepro.models.capture import Prefill, prefill, rotary_positions
from kvrepro.models.loading import LoadedModel
from kvrepro.results import DENSE, FULL

Scorer = Callable[[str, str, tuple[str, ...]], float]  # (task, prediction, references) -> score in [0, 1]


@dataclass
class Asked:
    """Answers of one arm to all questions of an example, with what its checks found."""

    arm: Arm
    kept_entries: int
    bytes_held: int
    failed: set[str]  # checks of the cache that failed
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
        evictions = [Arm(FULL, Full(), 1.0), *(a for a in arms if isinstance(a.method, Eviction))]
        window = max(a.method.query_window for a in evictions)
        parent = prefill(lm, torch.tensor(prompt.prefix), prompt.protected, query_window=max(window, 1))
        dense = _dense(lm, parent, prompt, example)
        asked = [dense]
        plans = sorted(_plans(parent, evictions, label), key=lambda plan: plan[0].kept)  # little padding in a batch
        for i in range(0, len(plans), batch):
            asked += _ask_children(lm, parent, prompt, example, plans[i : i + batch])
        asked += [_ask_admitted(lm, prompt, example, a) for a in arms if isinstance(a.method, Admission)]
    except InputError as error:
        raise InputError(f"{label}: {error}") from error
    for result in asked:
        for number, (question, given) in enumerate(zip(example.questions, result.answers, strict=True)):
            text = lm.tokenizer.decode(given.tokens, skip_special_tokens=True)
            failed = set(result.failed)
            if result.arm.kept == 1.0 and given.tokens != dense.answers[number].tokens:
                failed.add("identity")
            yield base | {
                "model": lm.name,
                "method": result.arm.name,
                "options": result.arm.options(),
                "budget": result.arm.kept,
                "task": example.task,
                "item": example.item,
                "question": number,
                "metric": "score",
                "value": score(example.task, text, question.references),
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
    asked = Asked(Arm(DENSE, Full(), 1.0), held, size, set())
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
        key = id(arm.method)
        if key not in scored:
            scored[key] = arm.method.score(parent), arm.method.layer_weights(parent)
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
    for ids, question in zip(prompt.questions, example.questions, strict=True):
        _ask(lm, asked, children.cache, parent.n, ids, question)
        children.rewind()
    return asked


def _failed_checks(children: Children, row: int, parent: Prefill, kept: float) -> set[str]:
    """What is wrong with a child, judged from its own tensors and GateSight §2, not from how it was made.

    ``budget``: the entries of the whole model; ``protected``: the instruction prefix stands first in every head;
    ``compaction``: no head's tensors have room for more than the fullest of the batch, so nothing is only hidden.
    """
    n, prefix, layers = parent.n, parent.protected, children.attention
    failed = set()
    caches = len(layers) * parent.geometry.kv_heads
    if int(entries_held(layers)[row].sum()) != caches * (prefix + round(kept * (n - prefix))):
        failed.add("budget")
    start = torch.arange(prefix, device=layers[0].positions.device)
    if any(not torch.equal(head[:prefix], start) for layer in layers for head in layer.positions[row]):
        failed.add("protected")
    if any(layer.keys.shape[2] > int(layer.entries().max()) for layer in layers):
        failed.add("compaction")
    return failed


def _ask_admitted(lm: LoadedModel, prompt: Prompt, example: Example, arm: Arm) -> Asked:
    """Prefill under the admission policy, so that refused entries are never written, then ask."""
    n = len(prompt.prefix)
    policy = arm.method.policy(arm.kept, n)
    cache = admitted_cache(lm, policy)
    feed(lm, cache, torch.tensor(prompt.prefix))
    layers = [cache.layers[i] for i in lm.geometry.attention_layers]
    entries = entries_held(layers)
    asked = Asked(arm, int(entries.sum()), int(bytes_held(layers)[0]), set())
    if (entries != policy.entries).any():
        asked.failed.add("budget")
    if any(layer.keys.shape[2] > int(layer.entries().max()) for layer in layers):
        asked.failed.add("compaction")
    for ids, question in zip(prompt.questions, example.questions, strict=True):
        _ask(lm, [asked], copy.deepcopy(cache), n, ids, question)
    return asked
