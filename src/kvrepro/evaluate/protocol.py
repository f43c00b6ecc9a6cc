"""From examples to rows: GateSight Appendix A's protocol for eviction, the same checks for admission and selection.

One prefill of a context serves all arms without admission: their children are evicted to any kept fraction or whole.
Arms with admission or bounding prefill under their own policies, several as one batch, and arms that admit the same
once. As many examples as memory has room for then decode together, arms that select or are bounded apart from the
others; a GPU replays the steps, between which bounded caches are evicted from. Each answer carries its checks: entries
held equal the budget or what was admitted, the prefix is protected, the rest is gone, a bounded cache never held more
than its limit, no token read more than its selection's budget, the model was given the positions after the context,
bytes held, hashes of what was asked, and at kept fraction 1.0 the dense tokens. Beside them stand the most entries that
a cache held up to the end of the answer, and how often it was evicted from.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from kvrepro.benchmarks.example import Example, Prompt, render
from kvrepro.benchmarks.registry import Scorer
from kvrepro.cache.admitted import EVERYTHING, AdmittedLayer, Policy, admitted_cache, take_rows
from kvrepro.cache.bounded import Bounds
from kvrepro.cache.fork import fork
from kvrepro.cache.joined import JoinedLayer, join
from kvrepro.cache.ragged import EMPTY, RaggedLayer, bytes_held, entries_held
from kvrepro.cache.session import Session
from kvrepro.errors import InputError
from kvrepro.evaluate.arms import Arm, policy_of
from kvrepro.evaluate.decode import Answer, ask, confirmed, decode, feed
from kvrepro.evaluate.reading import Reading
from kvrepro.methods.allocation import allocate, keep_top, ranked, shared
from kvrepro.methods.eviction.full import Full
from kvrepro.models.attention import NAME
from kvrepro.models.capture import Prefill, prefill
from kvrepro.models.gated_attention import keys_before_rope
from kvrepro.models.loading import LoadedModel
from kvrepro.results import DENSE, FULL

#: Bytes of keys and values that are decoded together, about: a small part of a node's memory, or of a GPU's.
TOGETHER = {"cpu": 2**29, "cuda": 2**32}
#: Policies that prefill together, each with masks of its own, and the context that this is for; of shorter ones as many
#: more as their masks and answers have room for.
PREFILLS, PREFILLED = 4, 4096


@dataclass
class Asked:
    """Answers of one arm to all questions of an example, with what its checks found."""

    arm: Arm
    kept_entries: int
    bytes_held: int
    failed: set[str]  # checks of the cache that failed
    answers: list[Answer] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)  # most entries held, of each answer
    evictions: list[int] = field(default_factory=list)  # of context, question and answer


@dataclass
class Sitting:
    """Caches of one context, a row an arm, before their questions; all arms select what they read, or none does."""

    session: Session
    asked: list[Asked]
    prompt: Prompt
    example: Example

    @property
    def bytes(self) -> int:
        """Of keys and values, with the padding that its longest row asks of the others and room for an answer."""
        return self._bytes(longest_answer(self.example))

    @property
    def waiting(self) -> int:
        """Bytes of the same before there is room for an answer."""
        return self._bytes(0)

    def _bytes(self, room: int) -> int:
        keys = [layer.keys for layer in self.session.attention]
        return sum(2 * x[:, :, 0].numel() * (x.shape[2] + room) * x.element_size() for x in keys)

    @property
    def selects(self) -> bool:
        """Whether its arms select."""
        return self.asked[0].arm.selection is not None


def longest_answer(example: Example) -> int:
    """The most tokens that an answer to a question of the example has."""
    return max(question.max_new_tokens for question in example.questions)


@dataclass
class Opened:
    """An example whose context was prefilled for all arms: what it asks, and who will answer."""

    example: Example
    prompt: Prompt
    parent: Any  # transformers' own cache after the context
    dense: Asked
    sittings: list[Sitting]


def evaluate(
    lm: LoadedModel,
    examples: Iterable[Example],
    arms: list[Arm],
    score: Scorer,
    base: dict[str, Any],
    together: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows for every example, question, arm and metric, and two references at budget 1.0: ``dense``, transformers' own
    cache and attention, and ``full``, the compacted child that keeps everything and must answer with the same tokens.

    ``base`` gives the columns paper, experiment and tier; ``together`` is about how many bytes of keys and values are
    decoded at a time (default: :data:`TOGETHER`). An example that raises InputError (a score that is not finite, a
    context too long) stops the evaluation, naming it.
    """
    together = together or TOGETHER[lm.device.type]
    keys_pre_rope: dict[int, torch.Tensor] = {}
    with keys_before_rope(lm, keys_pre_rope):
        opened, size = [], 0
        for example in examples:
            opened.append(_open(lm, example, arms, keys_pre_rope, together))
            # not with room for answers: where these are long, many short contexts make few batches, and full ones
            size += sum(sitting.waiting for sitting in opened[-1].sittings)
            if size >= together:
                yield from _finish(lm, opened, score, base, keys_pre_rope, together)
                opened, size = [], 0
        yield from _finish(lm, opened, score, base, keys_pre_rope, together)


def _open(lm: LoadedModel, example: Example, arms: list[Arm], keys_pre_rope: dict, together: int) -> Opened:
    prompt = render(example, lm.tokenizer, lm.chat)
    label = f"{example.benchmark}/{example.task} item {example.item}"
    try:
        forked = [Arm(FULL, eviction=Full(), kept=1.0), *(a for a in arms if not (a.admission or a.bounding))]
        window = max(a.eviction.query_window for a in forked if a.eviction)
        parent = prefill(lm, torch.tensor(prompt.prefix), prompt.protected, query_window=max(window, 1))
        dense = _dense(parent)
        plans = sorted(_plans(parent, forked, label), key=lambda plan: plan[0].kept or 1.0)  # little padding in a batch
        rows = max(1, together * parent.n // (dense.bytes_held * (parent.n + longest_answer(example))))
        admitted = sorted((a for a in arms if a.admission and not a.bounding), key=lambda a: a.kept or 1.0)
        bounded, sittings = [[a] for a in arms if a.bounding], []
        prefills = min(int(PREFILLS * max(1, PREFILLED / parent.n) ** 2), max(PREFILLS, rows))
        for selects in (False, True):
            some = [plan for plan in plans if bool(plan[0].selection) == selects]
            sittings += [_children(lm, parent, prompt, example, some[i : i + rows]) for i in range(0, len(some), rows)]
            alike = _alike(arm for arm in admitted if bool(arm.selection) == selects)
            for groups in (alike, [group for group in bounded if bool(group[0].selection) == selects]):
                for i in range(0, len(groups), prefills):
                    sittings.append(_admitted(lm, prompt, example, groups[i : i + prefills], keys_pre_rope))
    except InputError as error:
        raise InputError(f"{label}: {error}") from error
    return Opened(example, prompt, parent.cache, dense, sittings)


def _finish(
    lm: LoadedModel, opened: list[Opened], score: Scorer, base: dict[str, Any], keys_pre_rope: dict, together: int
) -> Iterator[dict[str, Any]]:
    """Ask all sittings their questions, as many at a time as there is room for, and give the rows."""
    sittings = [sitting for each in opened for sitting in each.sittings]
    for alike in product((False, True), repeat=2):
        batch, size = [], 0
        for sitting in (each for each in sittings if (each.selects, each.session.bounds is not None) == alike):
            if batch and size + sitting.bytes > together:
                _ask(lm, batch, keys_pre_rope)
                batch, size = [], 0
            batch.append(sitting)
            size += sitting.bytes
        if batch:
            _ask(lm, batch, keys_pre_rope)
    for each in opened:
        _ask_dense(lm, each)
        yield from _rows(lm, each, score, base)


def _rows(lm: LoadedModel, opened: Opened, score: Scorer, base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    example, prompt, dense = opened.example, opened.prompt, opened.dense
    for result in [dense, *(asked for sitting in opened.sittings for asked in sitting.asked)]:
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
                "benchmark": example.benchmark,
                "task": example.task,
                "subtask": question.subtask,
                "item": example.item,
                "unit": example.item if example.unit is None else example.unit,
                "question": number,
                "seed": example.seed,
                "n_tokens": len(prompt.prefix),
                "protected": prompt.protected,
                "kept_entries": result.kept_entries,
                "bytes_held": result.bytes_held,
                "peak_entries": result.peaks[number],
                "evictions": result.evictions[number],
                "prompt_sha256": prompt.text_sha256,
                "token_sha256": prompt.token_sha256,
                "finish_reason": given.finish_reason,
                "prediction": text,
                "ok": not failed,
                "failed_checks": ",".join(sorted(failed)),
            }
            for metric, value in ({"score": judged} if isinstance(judged, float) else judged).items():
                yield row | {"metric": metric, "value": value}


def _ask(lm: LoadedModel, sittings: Sequence[Sitting], keys_pre_rope: dict) -> None:
    """Put every question to all rows of the sittings, each row reading what its arm selects."""
    for number in range(max(len(sitting.example.questions) for sitting in sittings)):
        now = [sitting for sitting in sittings if number < len(sitting.example.questions)]
        questions = [
            ask(
                lm,
                sitting.session.cache,
                len(sitting.prompt.prefix),
                sitting.prompt.questions[number],
                sitting.example.questions[number].max_new_tokens,
                rows=len(sitting.asked),
                bounds=sitting.session.bounds,
                sampling=sitting.example.questions[number].sampling,
            )
            for sitting in now
        ]
        asked = [each for sitting in now for each in sitting.asked]
        room = max(each.max_new_tokens for each in questions)
        cache = join(lm, [sitting.session.cache for sitting in now], room, keys_pre_rope)
        selections = [each.arm.selection for each in asked]
        layers = {i: cache.layers[i] for i in lm.geometry.attention_layers}
        reading = Reading(layers, selections)
        bounds = Bounds.joined([(len(each.asked), each.session.bounds) for each in now], list(layers.values()))
        answers = decode(lm, cache, questions, steady=True, bounds=bounds)
        starts = [len(sitting.prompt.prefix) for sitting in now for _ in sitting.asked]
        fed = [len(sitting.prompt.questions[number]) for sitting in now for _ in sitting.asked]
        _note_held(asked, answers, starts, fed, list(layers.values()), bounds)
        for each, given, start, most in zip(asked, answers, starts, reading.most, strict=True):
            _note(each, given, start)
            if each.arm.selection and most > each.arm.selection.budget:
                each.failed.add("selection")
        for sitting in now:
            sitting.session.rewind()


def _note(asked: Asked, given: Answer, start: int) -> None:
    """Add an answer, and check that the model was given the positions after the context: n, n + 1, ..."""
    asked.answers.append(given)
    if not (given.positions == torch.arange(start, start + given.positions.shape[1])).all():
        asked.failed.add("positions")


def _note_held(
    asked: Sequence[Asked],
    answers: Sequence[Answer],
    starts: Sequence[int],
    fed: Sequence[int],
    layers: Sequence[JoinedLayer],
    bounds: Bounds | None,
) -> None:
    """Add what each row held at most up to the end of its answer, ``starts`` and ``fed`` the tokens of its context and
    question: where nothing is evicted that is what it held at the end."""
    lengths = [given.positions.shape[1] for given in answers]
    newest = torch.tensor([s + n - 1 for s, n in zip(starts, lengths, strict=True)], device=layers[0].device)
    held = sum(layer.held_at(newest[:, None, None]).sum((1, 2)) for layer in layers).tolist()
    for row, each in enumerate(asked):
        peak, evictions = held[row], 0
        if each.arm.bounding is not None:
            evictions, peak = (per_row[row] for per_row in bounds.after(lengths[row] - fed[row]))
            if peak > each.arm.bounding.budget * bounds.heads:
                each.failed.add("budget")
        each.peaks.append(peak)
        each.evictions.append(evictions)


def _dense(parent: Prefill) -> Asked:
    """The reference: transformers' own cache, which its own attention reads."""
    g = parent.geometry
    layers = [parent.cache.layers[i] for i in g.attention_layers]
    held = sum(layer.keys.shape[1] * layer.keys.shape[2] for layer in layers)
    size = sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in layers)
    size += sum(keys.numel() * keys.element_size() for keys in parent.index_keys or [])
    asked = Asked(Arm(DENSE, eviction=Full(), kept=1.0), held, size, set())
    if held != len(layers) * g.kv_heads * parent.n:
        asked.failed.add("budget")
    return asked


def _ask_dense(lm: LoadedModel, opened: Opened) -> None:
    """Put every question to the reference: an independent path from the children's, so that the child that keeps
    everything is compared with it. That child's answer is first tried at once; where the reference gives another one,
    it decodes its own."""
    prompt, n = opened.prompt, len(opened.prompt.prefix)
    full = next(asked for sitting in opened.sittings for asked in sitting.asked if asked.arm.name == FULL)
    lm.model.set_attn_implementation("sdpa")
    try:
        for ids, question, expected in zip(prompt.questions, opened.example.questions, full.answers, strict=True):
            put = n, ids, question.max_new_tokens
            given = confirmed(lm, copy.deepcopy(opened.parent), *put, expected, question.sampling)
            if given is None:
                cache = copy.deepcopy(opened.parent)
                given = decode(lm, cache, [ask(lm, cache, *put, sampling=question.sampling)])[0]
            _note(opened.dense, given, n)
            opened.dense.peaks.append(lm.geometry.cache_rows * (n + given.positions.shape[1]))
            opened.dense.evictions.append(0)
    finally:
        lm.model.set_attn_implementation(NAME)


def _plans(parent: Prefill, arms: list[Arm], label: str) -> Iterator[tuple[Arm, list[torch.Tensor]]]:
    """Per arm the masks of what it keeps; a method scores a context once for all its kept fractions."""
    g, scored = parent.geometry, {}
    for arm in arms:
        if arm.eviction is None:
            yield arm, [torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device) for keys in parent.keys]
            continue
        key = id(arm.eviction)
        if key not in scored:
            scores = arm.eviction.checked_score(parent)
            scores = shared(scores) if g.index else scores
            ranks = ranked(scores, parent.protected, f"{label}, {arm.name}")
            scored[key] = scores, ranks, arm.eviction.layer_weights(parent)
        scores, ranks, weights = scored[key]
        size = parent.n, parent.protected, len(g.attention_layers), g.lists
        counts = allocate(arm.rule, arm.kept, *size, weights, scores, g.block)
        yield arm, [mask.expand(g.kv_heads, -1) for mask in keep_top(ranks, counts, parent.protected)]


def _children(lm: LoadedModel, parent: Prefill, prompt: Prompt, example: Example, plans) -> Sitting:
    """Fork the plans' children."""
    children = fork(lm, parent, [masks for _, masks in plans])
    entries, size = entries_held(children.attention).flatten(1).sum(1).tolist(), bytes_held(children.attention).tolist()
    failed = _failed_checks(children, parent, [arm.kept for arm, _ in plans], entries)
    asked = [Asked(arm, entries[row], size[row], failed[row]) for row, (arm, _) in enumerate(plans)]
    return Sitting(children, asked, prompt, example)


def _failed_checks(
    children: Session, parent: Prefill, kept: Sequence[float | None], entries: Sequence[int]
) -> list[set[str]]:
    """What is wrong with each child, judged from its own tensors and GateSight §2, not from how it was made.

    ``budget``: the ``entries`` of the whole model, all of them where there is no kept fraction; ``protected``: the
    instruction prefix stands first in every head; ``compaction``: no head's tensors have room for more than the fullest
    of the batch, so nothing is only hidden; ``blocks``: the heads of a layer with an index hold the same entries, in
    whole blocks, and the index counts as many (Appendix H). All rows are judged at once: a GPU is waited for rarely.
    """
    n, prefix, layers, g = parent.n, parent.protected, children.attention, parent.geometry
    found = {"protected": ~torch.stack([_starts_with(layer, prefix) for layer in layers]).all(0)}
    if g.index:
        found["blocks"] = torch.stack([_not_in_blocks(layer, n, g.block) for layer in layers]).any(0)
    common, failed = _not_compact(layers), []
    for row, bad in enumerate(torch.stack(list(found.values()), dim=1).tolist()):
        failed.append(common | {name for name, wrong in zip(found, bad, strict=True) if wrong})
        budget = n if kept[row] is None else prefix + round(kept[row] * (n - prefix))
        if g.index and budget < n:
            budget = min(g.block * math.floor(budget / g.block + 0.5), n - n % g.block)
        if entries[row] != len(layers) * g.kv_heads * budget:
            failed[row].add("budget")
    return failed


def _starts_with(layer: RaggedLayer, prefix: int) -> torch.Tensor:
    """Rows in which every head's first entries are those of the prefix: ``[rows]`` bool."""
    first = layer.positions[:, :, :prefix]
    if first.shape[2] < prefix:
        return torch.zeros(len(first), dtype=torch.bool, device=first.device)
    return (first == torch.arange(prefix, device=first.device)).flatten(1).all(1)


def _not_in_blocks(layer: RaggedLayer, n: int, block: int) -> torch.Tensor:
    """Rows whose heads differ, or hold a part of a block, or that the index counts otherwise: ``[rows]`` bool."""
    positions, count = layer.positions, layer.entries()[:, 0]
    whole = (count % block == 0) | (count == n)
    return ~whole | (layer.block_index.count != count) | (positions != positions[:, :1]).flatten(1).any(1)


def _not_compact(layers: Sequence[RaggedLayer]) -> set[str]:
    most = torch.stack([layer.entries().max() for layer in layers]).tolist()
    hidden = any(layer.keys.shape[2] > held or _idle(layer, held) for layer, held in zip(layers, most, strict=True))
    return {"compaction"} if hidden else set()


def _idle(layer: RaggedLayer, most: int) -> bool:
    """Whether an index has room for more blocks than a row of ``most`` entries has."""
    index = layer.block_index
    return index is not None and (index.keys.shape[1] - 1) * index.block >= most > 0


def _alike(arms: Iterable[Arm]) -> list[list[Arm]]:
    """The arms by what they admit: those that differ in what they read only are together."""
    groups: list[list[Arm]] = []
    for arm in arms:
        same = (group for group in groups if (group[0].admission, group[0].kept) == (arm.admission, arm.kept))
        if (group := next(same, None)) is None:
            groups.append([arm])
        else:
            group.append(arm)
    return groups


def _admitted(
    lm: LoadedModel, prompt: Prompt, example: Example, groups: list[list[Arm]], keys_pre_rope: dict
) -> Sitting:
    """Prefill under the admission policy of each group, so that refused entries are never written, and within the
    limits; either all arms have one, each in a group of its own, or none does. Then there is a row an arm."""
    n, arms, answer = len(prompt.prefix), [arm for group in groups for arm in group], longest_answer(example)
    own = [policy_of(group[0], n, answer) if group[0].admission else EVERYTHING for group in groups]
    cache = admitted_cache(lm, own, keys_pre_rope)
    bounds = None
    if arms[0].bounding:
        layers = [cache.layers[i] for i in lm.geometry.attention_layers]
        bounds = Bounds(layers, [arm.bounding.limit() for arm in arms])
    feed(lm, cache, torch.tensor(prompt.prefix), len(groups), bounds)
    rows = [number for number, group in enumerate(groups) for _ in group]
    if len(arms) > len(groups):
        take_rows(lm, cache, rows)
    session, policies = Session(cache, lm.geometry, bounds), [own[number] for number in rows]
    entries, size = entries_held(session.attention), bytes_held(session.attention).tolist()
    total, failed = entries.flatten(1).sum(1).tolist(), _failed_admission(session, policies, entries.cpu(), n)
    asked = [Asked(arm, total[row], size[row], failed[row]) for row, arm in enumerate(arms)]
    return Sitting(session, asked, prompt, example)


def _failed_admission(session: Session, policies: Sequence[Policy], entries: torch.Tensor, n: int) -> list[set[str]]:
    """What is wrong with each row of an admitted cache after its context.

    ``admission``: a head holds other positions than the local window and those that were admitted; ``budget``: it holds
    another number than the policy says; ``compaction``: as of a child. Where there is a limit a head may hold fewer,
    though not of the youngest tokens that the limit observes. All rows are judged at once: a GPU is waited for rarely.
    """
    layers, bounds = session.attention, session.bounds
    limits = bounds.limits if bounds else [None] * len(policies)
    evicted = bounds.evictions if bounds else [0] * len(policies)
    youngest = [n - limit.window if limit and count else 0 for limit, count in zip(limits, evicted, strict=True)]
    youngest = torch.tensor(youngest, device=layers[0].device)[:, None, None]
    wrong = torch.stack([_wrongly_held(layer, youngest, n) for layer in layers]).any(0).tolist()
    common, failed = _not_compact(layers), []
    for row, policy in enumerate(policies):
        failed.append(common | ({"admission"} if wrong[row] else set()))
        if limits[row] is None and policy.entries is not None and (entries[row] != policy.entries).any():
            failed[row].add("budget")
    return failed


def _wrongly_held(layer: AdmittedLayer, youngest: torch.Tensor, n: int) -> torch.Tensor:
    """Rows in which a head holds what was not admitted, lacks something from position ``youngest`` ``[rows, 1, 1]`` on,
    or has entries out of order or twice: ``[rows]`` bool."""
    now, held = torch.arange(n, device=youngest.device), layer.positions
    wanted = torch.cat(layer.decisions, -1) | (now >= n - layer.windows)
    there = torch.zeros(*wanted.shape[:2], n + 1, dtype=torch.bool, device=held.device)
    there = there.scatter_(2, held.masked_fill((held == EMPTY) | (held >= n), n), True)[..., :n]
    before = held.cummax(-1).values[..., :-1]
    disordered = ((held[..., 1:] != EMPTY) & (held[..., 1:] <= before)).any(-1) | (held >= n).any(-1)
    return (disordered | ((there & ~wanted) | (wanted & ~there & (now >= youngest))).any(-1)).any(-1)
