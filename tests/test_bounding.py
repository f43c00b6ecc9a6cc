"""Bounded SnapKV (WG-KV Appendix K): each token against a brute force, alone and over admission; what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd
import pytest
import torch

from kvrepro.benchmarks.example import Example, Question
from kvrepro.cache.admitted import Policy, admitted_cache
from kvrepro.cache.bounded import Bounds, least
from kvrepro.cache.joined import join
from kvrepro.errors import InputError
from kvrepro.evaluate.arms import Arm
from kvrepro.evaluate.arms import arms as arms_of
from kvrepro.evaluate.decode import ask, decode, feed
from kvrepro.evaluate.protocol import EVERYTHING, evaluate
from kvrepro.methods import bounding, selection
from kvrepro.methods.admission.base import Admission
from kvrepro.methods.bounding.snapkv import SnapKV
from kvrepro.models.capture import decoder
from kvrepro.models.gated_attention import gated, keys_before_rope
from kvrepro.results import ANSWERS

MODELS = ("tiny_dense", "tiny_hybrid")
OPTIONS = {"budget": 14, "window": 6, "share": 0.1}


@dataclass
class Gate(Admission):
    """Admits about half by the keys before RoPE."""

    name = "half_gate"
    tau: float = 0.5

    def admit(self, layer, keys_pre_rope, keys, positions):
        return keys_pre_rope[..., 0].sigmoid()

    def policy(self, kept, n):
        return Policy(8, self.admit, self.tau)


class BruteForce:
    """Token by token: a forward over all tokens in which every query sees what was alive at its own time, in loops."""

    def __init__(self, lm, options, policy=None, kernel=5, over="held"):
        self.lm, self.options, self.policy, self.kernel, self.over = lm, options, policy, kernel, over
        layers, heads = lm.geometry.attention_layers, range(lm.geometry.kv_heads)
        self.alive = {layer: [set() for _ in heads] for layer in layers}
        self.rows = {layer: [[] for _ in heads] for layer in layers}  # what each query saw
        self.evictions, self.peak, self.tensors = 0, 0, {}

    def attend(self, layer, pre, query, key, value, scale):
        n, group = query.shape[2], self.lm.geometry.group
        self.tensors[layer] = pre, query, key
        mask = torch.zeros(len(self.rows[layer]), n, n, dtype=torch.bool)
        for head, rows in enumerate(self.rows[layer]):
            if len(rows) < n:  # the new token: what is alive, and itself
                self._append(layer, head, n - 1, pre, key)
            for i, seen in enumerate(rows):
                mask[head, i, sorted(seen)] = True
        scores = query @ key.repeat_interleave(group, 1).mT * scale
        scores = scores.masked_fill(~mask.repeat_interleave(group, 0), float("-inf"))
        return scores.softmax(-1) @ value.repeat_interleave(group, 1)

    def _append(self, layer, head, now, pre, key):
        alive = self.alive[layer][head]
        alive.add(now)
        if self.policy is not None:
            gates = self.policy.gate(layer, pre, key, torch.arange(now + 1))[0, head]
            alive -= {i for i in alive if now - i >= self.policy.window and gates[i] < self.policy.threshold}
        self.rows[layer][head].append(set(alive))

    def run(self, tokens):
        for t in range(len(tokens)):
            with torch.no_grad(), gated(self.lm, self):
                out = decoder(self.lm.model)(tokens[None, : t + 1], use_cache=False).last_hidden_state[0]
            heads = self.lm.geometry.cache_rows
            while self.total() > self.options["budget"] * heads:
                self.evictions += 1
                for layer, per_head in self.alive.items():
                    for head in range(len(per_head)):
                        self.evict(layer, head, t)
            self.peak = max(self.peak, self.total())
        return out

    def total(self):
        return sum(len(alive) for per_head in self.alive.values() for alive in per_head)

    def evict(self, layer, head, now):
        window, half = self.options["window"], self.kernel // 2
        evictable = [j for j in sorted(self.alive[layer][head]) if j <= now - window]
        order = evictable if self.over == "evictable" else sorted(self.alive[layer][head])
        _, query, key = (x[0].double() for x in self.tensors[layer])
        raw = dict.fromkeys(order, 0.0)
        for i in range(now - window + 1, now + 1):
            best = dict.fromkeys(order, 0.0)
            for h in range(head * self.lm.geometry.group, (head + 1) * self.lm.geometry.group):
                weight = {j: math.exp(query[h, i] @ key[head, j] / math.sqrt(key.shape[-1])) for j in order if j <= i}
                for j, w in weight.items():
                    best[j] = max(best[j], w / sum(weight.values()))
            raw = {j: raw[j] + best[j] for j in order}
        places = {j: place for place, j in enumerate(order)}
        pooled = {j: max(raw[k] for k in order[max(0, p - half) : p + half + 1]) for j, p in places.items()}
        count = math.ceil(round(len(evictable) * self.options["share"], 6))
        for j in sorted(evictable, key=lambda j: (pooled[j], j))[:count]:
            self.alive[layer][head].remove(j)


def bounded(lm, policies, limits, before):
    cache = admitted_cache(lm, policies, before)
    return cache, Bounds([cache.layers[i] for i in lm.geometry.attention_layers], limits)


def positions(layer, row):
    return [set(held[keep].tolist()) for held, keep in zip(layer.positions[row], layer.held()[row], strict=True)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("policy", [None, Gate().policy(None, 0)], ids=["alone", "over admission"])
@pytest.mark.parametrize(("over", "scratch"), [("held", 2**30), ("held", 1), ("evictable", 2**30)])
def test_every_token_is_that_of_the_brute_force(model, policy, over, scratch, request, tokens, monkeypatch):
    """Context, question and answer: what is held, how often it was evicted from, and what is answered; with room to
    score all rows at once, and none."""
    monkeypatch.setattr("kvrepro.cache.bounded.SCRATCH", scratch)
    lm = request.getfixturevalue(model)
    method = bounding.build("snapkv", OPTIONS | {"over": over})
    context, question, length = tokens[:37], tokens[37:41].tolist(), 8
    with keys_before_rope(lm, before := {}):
        cache, bounds = bounded(lm, [policy or EVERYTHING], [method.limit()], before)
        feed(lm, cache, context, 1, bounds)
        posed = ask(lm, cache, len(context), question, length, 1, bounds)
        whole = join(lm, [cache], length, before)
        layers = {i: whole.layers[i] for i in lm.geometry.attention_layers}
        bounds = Bounds.joined([(1, bounds)], list(layers.values()))
        answer = decode(lm, whole, [posed], bounds=bounds)[0]
    fed = torch.cat([context, torch.tensor([*question, *answer.tokens[:-1]])])
    brute = BruteForce(lm, OPTIONS, policy, over=over)
    hidden = brute.run(fed)
    assert brute.evictions > 2
    given = lm.model.lm_head(hidden[len(context) + len(question) - 1 :]).argmax(-1).tolist()
    assert answer.finish_reason == "length" and list(answer.tokens) == given
    assert {i: positions(layer, 0) for i, layer in layers.items()} == brute.alive
    assert bounds.evictions == [brute.evictions] and bounds.peaks == [brute.peak]


def test_rows_of_a_batch_have_limits_of_their_own(tiny_dense, tokens):
    lm, limits = tiny_dense, [bounding.build("snapkv", OPTIONS | {"budget": b}).limit() for b in (11, 30, 14)]
    policies = [EVERYTHING, EVERYTHING, Gate().policy(None, 0)]
    with keys_before_rope(lm, before := {}):
        cache, bounds = bounded(lm, policies, limits, before)
        feed(lm, cache, tokens[:50], 3, bounds)
    for row, limit in enumerate(limits):
        brute = BruteForce(lm, OPTIONS | {"budget": limit.budget}, policies[row] if row == 2 else None)
        brute.run(tokens[:50])
        assert {i: positions(cache.layers[i], row) for i in lm.geometry.attention_layers} == brute.alive
        assert bounds.evictions[row] == brute.evictions and bounds.peaks[row] == brute.peak <= limit.budget * 6
    for layer in cache.layers:
        assert layer.keys.shape[2] == int(layer.entries().max()), "what is evicted is gone, not hidden"


def test_a_step_waits_for_the_device_once_and_once_more_where_something_goes(tiny_dense, tokens, monkeypatch):
    """Budgets of one method are evicted from together, in all layers; a share or window of its own is apart."""
    lm, waits, groups = tiny_dense, [], []
    given = [{"budget": 11}, {"budget": 30}, {"budget": 14}, {"budget": 12, "share": 0.5}]
    limits = [bounding.build("snapkv", OPTIONS | each).limit() for each in given]
    evict = Bounds._evict
    monkeypatch.setattr(Bounds, "_evict", lambda self, rows, most: groups.append(rows) or evict(self, rows, most))
    with keys_before_rope(lm, before := {}):
        cache, bounds = bounded(lm, [EVERYTHING] * 4, limits, before)
        feed(lm, cache, tokens[:40], 4, bounds)
        posed = ask(lm, cache, 40, [7, 7], 30, 4, bounds)
        whole = join(lm, [cache], 30, before)
        bounds = Bounds.joined([(4, bounds)], [whole.layers[i] for i in lm.geometry.attention_layers])
        groups.clear()
        with monkeypatch.context() as patch:
            for name in ("tolist", "item", "__bool__", "__int__"):
                wait = getattr(torch.Tensor, name)
                patch.setattr(torch.Tensor, name, lambda x, wait=wait: waits.append(1) or wait(x))
            enforce = Bounds.enforce

            def counted(self):
                begun, evicted = len(waits), len(groups)
                held = enforce(self)
                assert len(waits) - begun == 1 + len(groups) - evicted
                return held

            patch.setattr(Bounds, "enforce", counted)
            decode(lm, whole, [posed], bounds=bounds)
    assert [0, 2] in groups and [3] in groups
    assert all(rows == [3] or 3 not in rows for rows in groups) and len(bounds.steps) == 29


def test_the_least_of_each_head_by_hand():
    scores = torch.tensor([[[5.0, 1, 1, 3, 0, 9], [1, 2, 3, 4, 5, 6]]])
    evictable = torch.tensor([[[True, True, True, True, False, False], [False] * 6]])
    assert least(scores, evictable, 0.1).nonzero().tolist() == [[0, 0, 1]]  # the older of two equal ones
    assert least(scores, evictable, 0.5).nonzero().tolist() == [[0, 0, 1], [0, 0, 2]]
    assert least(torch.zeros(1, 1, 30), torch.ones(1, 1, 30, dtype=torch.bool), 0.1).sum() == 3


def example(item=0, sentences=6):
    return Example(
        "ruler",
        "vt",
        item,
        42 + item,
        "Remember this text.\n",
        " The grass is green. The sky is blue." * sentences,
        (Question("\nWhat is the number?", ("7",), 16), Question("\nWhat is blue?", ("sky",), 4)),
    )


def evaluated(lm, methods, **more):
    made = [*arms_of(methods, [0.5], "methods", lm), *(Arm(name, **parts) for name, parts in more.items())]
    got = pd.DataFrame(evaluate(lm, [example(0), example(1, 5)], made, lambda *_: 0.0, {}, together=400_000))
    assert got["ok"].all(), got[["method", "failed_checks"]]
    return got


@pytest.mark.parametrize("model", MODELS)
def test_any_admission_and_selection_is_evaluated_under_a_hard_budget(model, request):
    lm = request.getfixturevalue(model)
    snapkv = bounding.build("snapkv", {"budget": 24, "window": 8})
    quest = selection.build("quest", {"budget": 16, "local": 4, "page": 4})
    rows = evaluated(
        lm,
        {
            "snapkv": {
                "bounding": {"method": "snapkv", "budget": 300, "window": 8},
                "over": {"bounding": {"budget": [16, 24, 2000]}},
            },
            "local+snapkv": {
                "admission": {"method": "local_attention", "sinks": 4},
                "bounding": {"method": "snapkv", "budget": 24, "window": 8},
            },
        },
        **{
            "gate": {"admission": Gate()},
            "gate+snapkv": {"admission": Gate(), "bounding": snapkv},
            "gate+quest+snapkv": {"admission": Gate(), "bounding": snapkv, "selection": quest},
        },
    )
    ANSWERS.validate(rows.assign(paper="wg_kv", experiment="ruler", tier="test"))
    most = lm.geometry.cache_rows
    peaks = (rows.set_index(["method", "item", "question"])["peak_entries"] / most).unstack(0)
    assert (peaks["snapkv@budget=16"] <= 16).all() and (peaks[["gate+snapkv", "local+snapkv"]] <= 24).all(axis=None)
    assert (peaks["snapkv@budget=16"] > 14).all() and (peaks["gate"] > 24).all()
    evictions = rows.set_index(["method", "item", "question"])["evictions"].unstack(0)
    assert (evictions[["dense", "full", "gate", "snapkv@budget=2000"]] == 0).all(axis=None)
    assert (evictions["snapkv@budget=16"] > evictions["snapkv@budget=24"]).all()
    assert (evictions["snapkv@budget=24"] > evictions["gate+snapkv"]).all() and (evictions["gate+snapkv"] > 0).all()
    said = rows.set_index(["method", "item", "question"])["prediction"].unstack(0)
    assert (said["snapkv@budget=2000"] == said["dense"]).all() and (said["snapkv@budget=16"] != said["dense"]).any()
    dense = rows[rows["method"] == "dense"]
    fed = dense["peak_entries"] / most - dense["n_tokens"]
    assert (fed > 0).all() and (peaks["full"] == peaks["dense"]).all()


def test_answers_do_not_depend_on_what_shares_their_batch(tiny_dense):
    method = {"it": {"bounding": {"method": "snapkv", "budget": 20, "window": 8}}}
    keys, columns = ["item", "question"], ["prediction", "evictions", "peak_entries"]
    alone = evaluated(tiny_dense, method)
    among = evaluated(tiny_dense, method | {"other": {"bounding": {"method": "snapkv", "budget": 12, "window": 8}}})
    alone, among = (x[x["method"] == "it"].set_index(keys)[columns] for x in (alone, among))
    pd.testing.assert_frame_equal(alone, among)


def marked(lm, monkeypatch, broken):
    monkeypatch.setattr(Bounds, "_evict", broken)
    made = [Arm("it", bounding=bounding.build("snapkv", {"budget": 24, "window": 8}))]
    got = pd.DataFrame(evaluate(lm, [example()], made, lambda *_: 0.0, {}))
    return set(got[got["method"] == "it"]["failed_checks"])


def test_a_cache_beyond_its_budget_is_marked(tiny_dense, monkeypatch):
    real = SnapKV.limit
    monkeypatch.setattr(SnapKV, "limit", lambda self: replace(real(self), budget=self.budget + 1))
    made = [Arm("it", bounding=bounding.build("snapkv", {"budget": 24, "window": 8}))]
    got = pd.DataFrame(evaluate(tiny_dense, [example()], made, lambda *_: 0.0, {}))
    assert set(got[got["method"] == "it"]["failed_checks"]) == {"budget"}


def test_a_window_that_is_not_kept_is_marked(tiny_dense, monkeypatch):
    def youngest(self, rows, fullest):
        for layer in self.layers:
            held = layer.held()[rows]
            layer.drop(torch.tensor(rows), held & (held.cumsum(-1) == held.sum(-1, keepdim=True)))

    assert "admission" in marked(tiny_dense, monkeypatch, youngest).pop()


def test_an_importance_that_is_no_number_ends_the_run(tiny_dense, monkeypatch):
    monkeypatch.setattr(SnapKV, "importance", lambda self, queries, keys, *_: keys.new_full(keys.shape[:3], math.nan))
    made = [Arm("it", bounding=bounding.build("snapkv", {"budget": 24, "window": 8}))]
    with pytest.raises(InputError, match="ruler/vt item 0: nothing was evicted"):
        list(evaluate(tiny_dense, [example()], made, lambda *_: 0.0, {}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 256}, "a budget of 256 entries a head has no room beside the 256 tokens .* raise it above 256"),
        ({"budget": 100}, "has no room beside the 256"),
        ({"budget": 300, "share": 0.0}, "share in"),
        ({"budget": 300, "window": 0}, "at least 1 token"),
        ({"budget": 300, "kernel": 4}, "odd number"),
        ({"budget": 300, "over": "all"}, "over 'all' is unknown; allowed: evictable, held"),
        ({}, "budget"),
        ({"budget": 300, "windw": 3}, "did you mean 'window'"),
    ],
    ids=str,
)
def test_bad_options_are_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        bounding.build("snapkv", options)


def test_bounding_and_eviction_of_a_prefill_exclude_each_other():
    with pytest.raises(InputError, match="leave one of them out"):
        arms_of({"it": {"eviction": "snapkv", "bounding": {"method": "snapkv", "budget": 300}}}, [0.5], "methods")
