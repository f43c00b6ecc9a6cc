"""Every eviction and admission method: its formula against an independent brute force, and what all must honour."""

from __future__ import annotations

import math

import pytest
import torch

from kvrepro.errors import InputError
from kvrepro.methods import admission, eviction
from kvrepro.methods.admission import base as admission_base
from kvrepro.models.capture import prefill

WITHOUT_ARTIFACTS = [name for name in eviction.names() if not eviction.artifacts(name)]


@pytest.fixture(params=["tiny_hybrid", "tiny_dense"])
def parent(request, tokens):
    return prefill(request.getfixturevalue(request.param), tokens, protected=7)


@pytest.mark.parametrize("name", WITHOUT_ARTIFACTS)
def test_scores_have_a_value_for_every_entry_and_repeat(name, parent):
    first, second = (eviction.build(name).score(parent) for _ in range(2))
    for a, b, keys in zip(first, second, parent.keys, strict=True):
        assert a.shape == keys.shape[:2] and torch.isfinite(a).all() and torch.equal(a, b)


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


def test_snapkv_by_hand(parent):
    g, w, kernel = parent.geometry, 8, 5
    got = eviction.build("snapkv", {"window": w, "kernel": kernel}).score(parent)
    n = parent.n
    for scores, keys, queries in zip(got, parent.keys, parent.queries, strict=True):
        for h in range(g.kv_heads):
            best = torch.full((n,), -1.0, dtype=torch.float64)
            for j in range(g.group):
                total = torch.zeros(n, dtype=torch.float64)
                for row in range(w):
                    q = queries[h * g.group + j, -w + row].double()
                    seen = n - w + row + 1
                    total[:seen] += ((keys[h, :seen].double() @ q) / math.sqrt(g.head_dim)).softmax(0)
                pooled = [total[max(0, i - 2) : i + 3].max() for i in range(n)]
                best = torch.maximum(best, torch.stack(pooled))
            torch.testing.assert_close(scores[h, : n - w].double(), best[: n - w], atol=1e-5, rtol=1e-4)
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
    policy = admission.build("local_attention", {"sinks": 4}).policy(0.2, 100)
    assert policy.window == 16 and policy.entries == 20
    keys = torch.zeros(1, 2, 10, 8)
    assert policy.admit(0, keys, torch.arange(10)).tolist() == [[[True] * 4 + [False] * 6] * 2]
    assert not policy.admit(0, keys, torch.arange(50, 60)).any()


@pytest.mark.parametrize("kept", [0.0, 0.04, 1.2])
def test_local_attention_refuses_impossible_budgets(kept):
    with pytest.raises(InputError, match="leaves no window"):
        admission.build("local_attention", {"sinks": 4}).policy(kept, 100)


def test_every_admission_method_is_found():
    assert "local_attention" in admission.names()
    assert all(issubclass(c, admission_base.Admission) for c in admission_base.Admission.__subclasses__())
