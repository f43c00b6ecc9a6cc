"""Every eviction and admission method: its formula against an independent brute force, and what all must honour."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from synthetic_labels import RECIPE

from kvrepro.benchmarks.example import Example, Question
from kvrepro.errors import InputError
from kvrepro.estimators.mlp import Estimators
from kvrepro.evaluate.arms import Arm
from kvrepro.evaluate.protocol import evaluate
from kvrepro.labels.query_statistics import calibrate
from kvrepro.methods import admission, eviction, selection
from kvrepro.methods.discovery import Family
from kvrepro.methods.eviction.base import Eviction
from kvrepro.methods.selection.base import Held
from kvrepro.models.capture import prefill
from kvrepro.training.estimators import initial

MODELS = ("tiny_hybrid", "tiny_dense")
ON_ITS_MODELS = [(name, m) for name in eviction.names() for m in MODELS if (name, m) != ("gatesight", "tiny_dense")]


@pytest.fixture(params=MODELS)
def parent(request, tokens):
    return prefill(request.getfixturevalue(request.param), tokens, protected=7)


@pytest.fixture
def prepared(tmp_path, tokens):
    """``prepared(name, lm, options)``: a method ready for a model, with artefacts made for it."""

    def make(name, lm, options=None):
        paths = {}
        for field in eviction.artifacts(name):
            paths[field] = str(tmp_path / f"{field}.safetensors")
            if field == "query_statistics":
                calibrate(lm, [tokens.flip(0)], 80).save(paths[field], lm, 80)
            elif field == "estimators":
                untrained, gates = initial(lm.geometry, RECIPE), torch.tensor([0.1, 0.3])
                Estimators(untrained, gates, lm.geometry, lm.fingerprint, lm.name, [], {}).save(paths[field])
        method = eviction.build(name, options, artifact_paths=paths)
        method.prepare(lm)
        return method

    return make


@pytest.mark.parametrize(("name", "model"), ON_ITS_MODELS)
def test_scores_have_a_value_for_every_entry_and_repeat(name, model, prepared, request, tokens):
    lm = request.getfixturevalue(model)
    parent, method = prefill(lm, tokens, protected=7), prepared(name, lm)
    first, second = (method.score(parent) for _ in range(2))
    for a, b, keys in zip(first, second, parent.keys, strict=True):
        assert a.shape == keys.shape[:2] and a.dtype == torch.float32
        assert torch.isfinite(a).all() and torch.equal(a, b)


@pytest.mark.parametrize(("name", "model"), ON_ITS_MODELS)
def test_every_method_is_evaluated_with_its_own_allocation(name, model, prepared, request):
    lm = request.getfixturevalue(model)
    context = " The grass is green. The sky is blue." * 8
    example = Example("ruler", "vt", 0, 1, "Remember this.\n", context, (Question("\nWhat is blue?", ("sky",), 3),))
    method = prepared(name, lm)
    rows = pd.DataFrame(
        evaluate(lm, [example], [Arm("it", eviction=method, kept=k) for k in (0.2, 1.0)], lambda *_: 0.0, {})
    )
    assert rows["ok"].all(), rows[["method", "budget", "failed_checks"]]
    for row in rows[rows["method"] == "it"].itertuples():
        body = row.n_tokens - row.protected
        assert row.kept_entries == lm.geometry.cache_rows * (round(row.budget * body) + row.protected)


def test_gates_of_a_context_by_hand(tiny_hybrid, tiny_dense, tokens):
    parent = prefill(tiny_hybrid, tokens)
    got = eviction.build("random").layer_weights(parent)
    for number, gates in enumerate(parent.output_gates):
        for head in range(2):
            largest = [max(gates[2 * head, i].item(), gates[2 * head + 1, i].item()) for i in range(100)]
            assert got[number, head] == pytest.approx(sum(largest) / 100, abs=1e-6)
    assert eviction.build("random").layer_weights(prefill(tiny_dense, tokens)) is None


def test_l2_norm_by_hand(parent):
    for scores, keys in zip(eviction.build("l2_norm").score(parent), parent.keys, strict=True):
        for h, i in ((0, 0), (1, 50), (1, 99)):
            assert scores[h, i] == pytest.approx(-math.sqrt(sum(float(x) ** 2 for x in keys[h, i])), rel=1e-5)


def test_random_differs_between_contexts_seeds_and_heads(tiny_dense, tokens):
    a = eviction.build("random").score(prefill(tiny_dense, tokens))
    b = eviction.build("random").score(prefill(tiny_dense, tokens.flip(0)))
    c = eviction.build("random", {"seed": 1}).score(prefill(tiny_dense, tokens))
    assert not torch.equal(a[0], b[0]) and not torch.equal(a[0], c[0]) and not torch.equal(a[0][0], a[0][1])


def test_keydiff_by_hand(parent):
    for variant in ("mean", "mean_of_normalised"):
        got = eviction.build("keydiff", {"anchor": variant}).score(parent)
        for scores, keys in zip(got, parent.keys, strict=True):
            for h in range(keys.shape[0]):
                rows = [[float(x) for x in key] for key in keys[h]]
                size = [math.sqrt(sum(x * x for x in row)) for row in rows]
                used = rows if variant == "mean" else [[x / s for x in r] for r, s in zip(rows, size, strict=True)]
                anchor = [sum(col) / len(rows) for col in zip(*used, strict=True)]
                norm = math.sqrt(sum(x * x for x in anchor))
                for i in (0, 31, 99):
                    cosine = sum(a * b for a, b in zip(anchor, rows[i], strict=True)) / (norm * size[i])
                    assert scores[h, i] == pytest.approx(-cosine, abs=1e-5)


@pytest.mark.parametrize("group", ["max", "mean"])
@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_snapkv_by_hand(parent, pooling, group):
    g, w, kernel = parent.geometry, 8, 5
    got = eviction.build("snapkv", {"window": w, "kernel": kernel, "pooling": pooling, "group": group}).score(parent)
    n = parent.n
    for scores, keys, queries in zip(got, parent.keys, parent.queries, strict=True):
        for h in range(g.kv_heads):
            found = []  # of each query head of the group
            for j in range(g.group):
                total = torch.zeros(n, dtype=torch.float64)
                for row in range(w):
                    q = queries[h * g.group + j, -w + row].double()
                    seen = n - w + row + 1
                    total[:seen] += ((keys[h, :seen].double() @ q) / math.sqrt(g.head_dim)).softmax(0)
                near = [total[max(0, i - 2) : min(i + 3, n - w)] for i in range(n - w)]
                found.append([float(x.max() if pooling == "max" else x.sum() / kernel) for x in near])
            wanted = [max(some) if group == "max" else sum(some) / g.group for some in zip(*found, strict=True)]
            torch.testing.assert_close(scores[h, : n - w].tolist(), wanted, atol=1e-5, rtol=1e-4)
            assert scores[h, n - w :].min() > scores[h, : n - w].max(), "the window is kept first"


def test_queries_of_the_prefill_are_the_models(tiny_dense, tokens):
    """SnapKV reads queries that the observer took: their attention must reproduce the module's last output row."""
    got = {}
    from kvrepro.models.attention import observing

    with observing(lambda module, q, k, v, out: got.setdefault(module.layer_idx, (q, k, v, out))):
        parent = prefill(tiny_dense, tokens)
    for number, layer in enumerate(tiny_dense.geometry.attention_layers):
        q, k, v, out = got[layer]
        assert torch.equal(parent.queries[number][:, -1], q[0, :, -1])
        weights = (parent.queries[number][:, -1:] @ k[0].repeat_interleave(2, 0).mT / math.sqrt(32)).softmax(-1)
        torch.testing.assert_close((weights @ v[0].repeat_interleave(2, 0))[:, 0], out[0, -1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window"),
        ({"kernel": 4}, "odd"),
        ({"pooling": "avg"}, r"snapkv\.pooling is 'avg'; allowed: max, mean"),
        ({"group": "sum"}, r"snapkv\.group is 'sum'"),
        ({"windw": 3}, "did you mean 'window'"),
    ],
)
def test_bad_options_are_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        eviction.build("snapkv", options)


def test_unknown_methods_name_the_nearest():
    with pytest.raises(InputError, match="did you mean 'keydiff'"):
        eviction.build("keydif")
    with pytest.raises(InputError, match="did you mean 'local_attention'"):
        admission.build("local_atention")
    with pytest.raises(InputError, match=r"keydiff.anchor is 'median'"):
        eviction.build("keydiff", {"anchor": "median"})


def test_local_attention_admits_sinks_only():
    method = admission.build("local_attention", {"sinks": 4})
    policy = method.policy(0.2, 100)
    assert policy.window == 16 and policy.entries == 20
    keys = torch.zeros(1, 2, 10, 8)
    assert policy.gate(0, keys, keys, torch.arange(10)).tolist() == [[[1.0] * 4 + [0.0] * 6] * 2]
    assert not policy.gate(0, keys, keys, torch.arange(50, 60)).any()


@pytest.mark.parametrize("kept", [0.0, 0.04, 1.2])
def test_local_attention_refuses_impossible_budgets(kept):
    with pytest.raises(InputError, match="leaves no window"):
        admission.build("local_attention", {"sinks": 4}).policy(kept, 100)


def held(seed: int, gaps: bool = True) -> tuple[torch.Tensor, Held]:
    """A query ``[2, 4, 8]`` and caches of 2 rows x 2 KV heads with 90 slots, of which some are empty, each of its
    own."""
    draw = torch.Generator().manual_seed(seed)
    keys = torch.randn(2, 2, 90, 8, generator=draw)
    positions = torch.rand(2, 2, 200, generator=draw).argsort(-1)[..., :90].sort(-1).values
    positions[..., -1] = 200  # the token itself
    if gaps:
        for row, head in ((0, 1), (1, 0), (1, 1)):
            empty = torch.rand(89, generator=draw) < 0.2 * (row + head)
            positions[row, head, :-1][empty] = -1
    return torch.randn(2, 4, 8, generator=draw), Held(keys, positions)


def quest_by_hand(query, cache, row, head, budget, page, local):
    """Slots that Quest reads in one head, entry by entry."""
    now = int(cache.positions[row, head].max())
    slots = [s for s in range(90) if cache.positions[row, head, s] >= 0]
    near = [s for s in slots if now - int(cache.positions[row, head, s]) < local]
    old = [s for s in slots if s not in near]
    pages = [old[i : i + page] for i in range(0, len(old), page)]
    scores = []
    for members in pages:
        best = -math.inf
        for j in range(2):
            q, total = query[row, 2 * head + j], 0.0
            for d in range(8):
                values = [float(cache.keys[row, head, s, d]) for s in members]
                total += max(float(q[d]) * min(values), float(q[d]) * max(values))
            best = max(best, total)
        scores.append(best if len(members) == page else math.inf)
    chosen = sorted(range(len(pages)), key=lambda i: -scores[i])[: (budget - local) // page]
    return sorted(near + [s for i in chosen for s in pages[i]])


@pytest.mark.parametrize(("budget", "page", "local"), [(40, 16, 8), (24, 4, 10), (31, 7, 1), (300, 16, 8)])
def test_quest_by_hand(budget, page, local):
    query, cache = held(budget)
    got = selection.build("quest", {"budget": budget, "page": page, "local": local}).select(0, query, cache)
    for row in range(2):
        for head in range(2):
            wanted = quest_by_hand(query, cache, row, head, budget, page, local)
            assert got[row, head].nonzero()[:, 0].tolist() == wanted
    assert int(got.sum(-1).max()) <= budget


def test_the_score_of_a_page_bounds_those_of_its_keys():
    from kvrepro.methods.selection.quest import page_scores

    query, cache = held(3, gaps=False)
    bounds = page_scores(query, cache.keys.unflatten(2, (10, 9)))
    exact = (query.view(2, 2, 2, 8) @ cache.keys.mT).amax(2).unflatten(-1, (10, 9)).amax(-1)
    assert (bounds >= exact - 1e-5).all() and not torch.allclose(bounds, exact)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"budget": 20}, "no room for a page of 16"), ({}, "budget"), ({"budget": 300, "page": 0}, "page")],
)
def test_quest_refuses_impossible_options(options, message):
    with pytest.raises(InputError, match=message):
        selection.build("quest", {"local": 8} | options)


def test_every_method_is_found_in_its_family():
    assert "local_attention" in admission.names() and "quest" in selection.names() and "snapkv" in eviction.names()
    with pytest.raises(InputError, match="selection method 'qest' is unknown; did you mean 'quest'"):
        selection.build("qest", {"budget": 300})


def test_a_method_without_its_verb_is_told_when_the_config_is_read():
    class Silent(Eviction):
        name = "silent"

    try:
        with pytest.raises(InputError, match=r"here: .*Silent.*score.*define every abstract method"):
            eviction.build("silent", where="here")
    finally:
        del Silent.name


def test_two_files_that_define_one_name(tmp_path, monkeypatch):
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/base.py").write_text("class Toy:\n    pass\n")
    for file in ("__init__", "first", "second"):
        made = "" if file == "__init__" else "from toys.base import Toy\n\n\nclass Mine(Toy):\n    name = 'mine'\n"
        (tmp_path / f"toys/{file}.py").write_text(made)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"toys method 'mine' is defined in toys\.first and toys\.second; rename one"):
        Family("toys", "Toy").methods()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda scores: scores[:-1],
        lambda scores: [score[:, :-1] for score in scores],
        lambda scores: [score[:1] for score in scores],
        lambda scores: [score[..., None] for score in scores],
        lambda scores: [score.numpy() for score in scores],
        lambda scores: None,
    ],
    ids=["layers", "tokens", "heads", "dimensions", "arrays", "nothing"],
)
def test_scores_of_another_shape_are_told_in_one_sentence(parent, wrong):
    class Wrong(Eviction):
        def score(self, prefill):
            return wrong(eviction.build("random").score(prefill))

    with pytest.raises(InputError, match=r"Wrong\.score: give a list of \d tensors, .* of shape \[\d+, \d+\]"):
        Wrong().checked_score(parent)


@pytest.mark.parametrize("name", ["snapkv", "keydiff", "triattention"])
def test_scores_of_heads_in_groups_are_those_of_all_at_once(name, prepared, tiny_hybrid, tokens, monkeypatch):
    parent, method = prefill(tiny_hybrid, tokens, protected=7), prepared(name, tiny_hybrid)
    whole = method.score(parent)
    monkeypatch.setattr("kvrepro.methods.blocks.ELEMENTS", 1)  # one head at a time
    for a, b in zip(method.score(parent), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
