"""Presses of kvpress as eviction methods: by name, through the protocol, and equal to ours where both are the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvrepro.benchmarks.example import Example, Question
from kvrepro.errors import InputError
from kvrepro.evaluate.arms import arms, described
from kvrepro.evaluate.protocol import evaluate
from kvrepro.methods import eviction
from kvrepro.methods.eviction import presses
from kvrepro.models.capture import prefill
from kvrepro.models.loading import load

ROOT = Path(__file__).parent.parent
CONTEXT = " The grass is green. The sky is blue." * 8


def test_without_the_package_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "kvpress", None)  # as where it is not installed
    presses._method.cache_clear()
    with pytest.raises(InputError, match=r"methods\.it\.eviction: kvpress:KnormPress: the package kvpress is missing"):
        described({"it": {"eviction": "kvpress:KnormPress"}}, [0.5], "methods", {"ruler": 1000})
    assert not any("kvpress" in name for name in eviction.names())


@pytest.fixture
def kvpress():
    presses._method.cache_clear()
    if importlib.util.find_spec("kvpress") is None:
        pytest.skip("the optional package kvpress is not installed")


@pytest.fixture(scope="module")
def alike(tokenizer_dir, tmp_path_factory):
    """A dense model with a KV head for each query head, where means and maxima over a GQA group are the same."""
    from conftest import VOCAB, _save

    torch.manual_seed(2)
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen3Config(**sizes, **heads, max_position_embeddings=1024, initializer_range=0.3)
    path = tmp_path_factory.mktemp("alike")
    _save(Qwen3ForCausalLM(config), tokenizer_dir, path)
    return load(str(path))


def scores(name, lm, parent, **options):
    method = eviction.build(name, options)
    method.prepare(lm)
    return method.score(parent)


@pytest.fixture(scope="module")
def lab_dense():
    """The committed lab model, whose two query heads a KV head look at different entries."""
    return load(str(ROOT / "models/lab-dense"))


@pytest.mark.parametrize(
    ("theirs", "ours", "options"),
    [("KeyDiffPress", "keydiff", {"anchor": "mean_of_normalised"}), ("KnormPress", "l2_norm", {})],
    ids=["keydiff", "l2_norm"],
)
@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid", "lab_dense"])  # these presses read keys alone
def test_the_same_scores_as_ours(kvpress, request, tokens, model, theirs, ours, options):
    lm = request.getfixturevalue(model)
    parent = prefill(lm, tokens)
    found = scores(f"kvpress:{theirs}", lm, parent)
    for a, b in zip(found, scores(ours, lm, parent, **options), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_attention_functions_are_left_alone(kvpress, tiny_dense):
    before = dict(ALL_ATTENTION_FUNCTIONS.items())
    for name in [name for name in sys.modules if name.split(".")[0] == "kvpress"]:
        del sys.modules[name]
    eviction.build("kvpress:KnormPress")
    assert "kvpress" in sys.modules and dict(ALL_ATTENTION_FUNCTIONS.items()) == before


def test_the_same_window_attention_as_ours(kvpress, alike, tokens):
    """Without pooling and with one query head a KV head, a mean over the window is the sum divided by its length."""
    parent = prefill(alike, tokens)
    theirs = scores("kvpress:SnapKVPress", alike, parent, window_size=8, kernel_size=1)
    for a, b in zip(theirs, scores("snapkv", alike, parent, window=8, kernel=1), strict=True):
        torch.testing.assert_close(a[:, :-8], b[:, :-8] / 8, atol=1e-5, rtol=1e-4)
        assert (a[:, -8:] >= a[:, :-8].max()).all() and (b[:, -8:] > b[:, :-8].max()).all()


@pytest.mark.parametrize("model", ["tiny_dense", "lab_dense"])
def test_the_same_pooled_window_attention_as_the_variant_of_ours(kvpress, request, tokens, model):
    lm = request.getfixturevalue(model)
    parent, variant = prefill(lm, tokens), {"pooling": "mean", "group": "mean"}
    theirs = scores("kvpress:SnapKVPress", lm, parent, window_size=8, kernel_size=5)
    for a, b in zip(theirs, scores("snapkv", lm, parent, window=8, kernel=5, **variant), strict=True):
        torch.testing.assert_close(a[:, :-8], b[:, :-8] / 8, atol=1e-6, rtol=1e-4)


def test_a_press_is_evaluated_with_real_compaction(kvpress, tiny_dense):
    example = Example("ruler", "vt", 0, 1, "Remember this.\n", CONTEXT, (Question("\nWhat is blue?", ("sky",), 3),))
    named = {"expected": {"eviction": {"method": "kvpress:ExpectedAttentionPress", "n_future_positions": 64}}}
    made = arms(named, [0.2, 1.0], "methods", tiny_dense)
    rows = pd.DataFrame(evaluate(tiny_dense, [example], made, lambda *_: 0.0, {}))
    assert rows["ok"].all(), rows[["method", "budget", "failed_checks"]]
    few = rows[(rows["method"] == "expected") & (rows["budget"] == 0.2)].iloc[0]
    assert few["kept_entries"] == tiny_dense.geometry.cache_rows * (
        round(0.2 * (few.n_tokens - few.protected)) + few.protected
    )
    assert few["bytes_held"] < 0.5 * rows.loc[rows["method"] == "dense", "bytes_held"].iloc[0]
    assert (
        '"method": "kvpress:ExpectedAttentionPress"' in few["options"] and '"n_future_positions": 64' in few["options"]
    )
    assert not any(hasattr(layer.self_attn, "rotary_emb") for layer in tiny_dense.model.model.layers)


def test_expected_attention_keeps_its_sinks_and_reads_its_options(kvpress, tiny_dense, tokens):
    parent = prefill(tiny_dense, tokens)
    plain, other = (
        scores("kvpress:ExpectedAttentionPress", tiny_dense, parent, **options)
        for options in ({}, {"use_vnorm": False})
    )
    for score, without in zip(plain, other, strict=True):
        assert score.shape == (2, 100) and torch.isfinite(score).all()
        assert (score[:, :4] >= score[:, 4:].max()).all() and not torch.equal(score, without)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("kvpress:KnormPres", "'KnormPres' is unknown; did you mean 'KnormPress'"),
        ("kvpress:AdaKVPress", "'AdaKVPress' is unknown"),  # changes what others score and gives no scores itself
        ({"method": "kvpress:SnapKVPress", "window": 8}, "option 'window' is unknown; did you mean 'window_size'"),
        ({"method": "kvpress:KnormPress", "compression_ratio": 0.5}, "option 'compression_ratio' is unknown"),
        ("kvpres:KnormPress", "eviction method 'kvpres:KnormPress' is unknown"),
    ],
    ids=str,
)
def test_bad_names_and_options(kvpress, said, message):
    with pytest.raises(InputError, match=message):
        arms({"it": {"eviction": said}}, [0.5], "methods")


@pytest.mark.parametrize("press", ["ObservedAttentionPress", "SnapKVPress"])
def test_a_press_that_cannot_read_the_model_is_one_sentence(kvpress, tiny_hybrid, tokens, press):
    """One needs attention weights; the other takes the queries of a gated attention for plain ones."""
    with pytest.raises(InputError, match=f"kvpress:{press} cannot score .*; take another press"):
        scores(f"kvpress:{press}", tiny_hybrid, prefill(tiny_hybrid, tokens))
    assert not any(hasattr(layer.self_attn, "rotary_emb") for layer in tiny_hybrid.model.model.layers[3::4])
