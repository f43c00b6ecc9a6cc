"""WG-KV and DuoAttention as admission methods: what they hold and what queries see, against the mask of WG-KV §4.2."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from kvrepro.benchmarks.example import Example, Question
from kvrepro.cache.admitted import AdmittedLayer, admitted_cache
from kvrepro.errors import InputError
from kvrepro.evaluate.arms import arms
from kvrepro.evaluate.protocol import evaluate
from kvrepro.kernels import vertical_slash
from kvrepro.kernels.common import INTERPRETED
from kvrepro.methods import admission
from kvrepro.methods.head_profile import HeadProfile
from kvrepro.models.capture import decoder
from kvrepro.models.gate import WriteGates, initial, load_gates, save_gates
from kvrepro.models.gated_attention import Gating, gated, keys_before_rope

WINDOW, TAU = 8, 0.45


@pytest.fixture
def gate_file(tmp_path):
    """``gate_file(lm)``: gates on both sides of the threshold, of two λ."""

    def make(lm):
        sweep = []
        for seed, trade_off in enumerate((0.08, 0.32)):
            layers = initial(lm.geometry, 12, seed)
            for layer in layers:
                layer.w2.data.mul_(30)
            sweep.append(WriteGates(layers, lm.geometry, lm.fingerprint, lm.name, WINDOW, trade_off))
        save_gates(sweep, tmp_path / "gates.safetensors")
        return str(tmp_path / "gates.safetensors")

    return make


def prepared(lm, path, **options):
    method = admission.build("write_gate", {"trade_off": 0.08, "threshold": TAU} | options, None, {"write_gates": path})
    method.prepare(lm)
    return method


def masked(lm, gates, ids, see) -> torch.Tensor:
    """Final hidden states of one forward in which ``see(g, age, row)`` says what a query sees, all layers anew."""

    class Masked:
        def attend(self, layer, pre, query, key, value, scale):
            g = gates.of_layer(layer)(pre, key)
            row = torch.arange(len(ids))[:, None]
            age = row - torch.arange(len(ids))
            mask = see(g[:, :, None], age, row) & (age >= 0)
            scores = query @ key.repeat_interleave(lm.geometry.group, 1).mT * scale
            weights = scores.masked_fill(~mask.repeat_interleave(lm.geometry.group, 1), float("-inf")).softmax(-1)
            return weights @ value.repeat_interleave(lm.geometry.group, 1)

    with torch.no_grad(), gated(lm, Masked()):
        return decoder(lm.model)(ids[None], use_cache=False).last_hidden_state[0]


@pytest.fixture
def prefilled_by(request, monkeypatch):
    """``mask``, or ``kernel``: as on a GPU, the first tokens of a context go through the vertical-slash kernel; a list
    of how many those were."""
    if request.param == "kernel" and not INTERPRETED:
        pytest.skip("the model is on the CPU, where kernels are interpreted")
    seen, real = [], vertical_slash.vertical_slash_attention

    def counted(query, *more, **options):
        seen.append(query.shape[2])
        return real(query, *more, **options)

    monkeypatch.setattr(vertical_slash, "vertical_slash_attention", counted)
    monkeypatch.setattr(AdmittedLayer, "_by_kernel", staticmethod(lambda query: request.param == "kernel"))
    yield seen
    assert bool(seen) == (request.param == "kernel")


@pytest.mark.parametrize("prefilled_by", ["mask", "kernel"], indirect=True)
@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid"])
@pytest.mark.parametrize("chunks", [[100], [60, 39, 1], [90, *[1] * 10]])
def test_inference_is_the_mask_of_the_paper(model, chunks, prefilled_by, request, gate_file, tokens):
    """Prefill, chunked prefill and decoding with refused entries never written, against one masked forward."""
    lm = request.getfixturevalue(model)
    path = gate_file(lm)
    method, gates = prepared(lm, path), load_gates(path, lm, 0.08)
    expected = masked(lm, gates, tokens, lambda g, age, row: (age < WINDOW) | (g >= TAU))
    found, begin = [], 0
    with torch.no_grad(), keys_before_rope(lm, before := {}):
        cache = admitted_cache(lm, [method.policy(None, 100)], before)
        for size in chunks:
            out = decoder(lm.model)(tokens[None, begin : begin + size], past_key_values=cache, use_cache=True)
            found.append(out.last_hidden_state[0])
            begin += size
    torch.testing.assert_close(torch.cat(found), expected, atol=3e-4, rtol=1e-4)  # 1.3e-4 was seen after two chunks
    gating = Gating([gates], WINDOW, threshold=TAU)
    with torch.no_grad(), gated(lm, gating):
        torch.testing.assert_close(
            decoder(lm.model)(tokens[None], use_cache=False).last_hidden_state[0], expected, atol=1e-4, rtol=1e-4
        )
    for layer, g in gating.seen.items():
        held = (g[0] >= TAU) | (torch.arange(100) >= 100 - WINDOW)
        assert 0.2 < held.float().mean() < 0.95
        assert torch.equal(cache.layers[layer].entries()[0], held.sum(-1))
    assert set(prefilled_by) <= {chunks[0]}


@pytest.mark.parametrize("prefilled_by", ["mask", "kernel"], indirect=True)
def test_published_variants(tiny_dense, gate_file, tokens, prefilled_by):
    path = gate_file(tiny_dense)
    gates = load_gates(path, tiny_dense, 0.08)
    method = prepared(tiny_dense, path, block_window=True)
    expected = masked(tiny_dense, gates, tokens, lambda g, age, row: (age < WINDOW + row % 64) | (g >= TAU))
    with torch.no_grad(), keys_before_rope(tiny_dense, before := {}):
        cache = admitted_cache(tiny_dense, [method.policy(None, 100)], before)
        found = decoder(tiny_dense.model)(tokens[None], past_key_values=cache, use_cache=True).last_hidden_state[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    for threshold in (0.1, 0.5):
        edge = torch.tensor([threshold])
        at_least, above = (
            prepared(tiny_dense, path, threshold=threshold, comparison=c).policy(None, 100).threshold
            for c in ("at_least", "above")
        )
        assert (edge >= at_least).all() and not (edge >= above).any() and (edge + 1e-7 >= above).all()


def test_gates_are_those_of_the_lambda_that_is_named(tiny_dense, gate_file):
    path, keys = gate_file(tiny_dense), torch.randn(2, 1, 2, 5, 32)
    for trade_off in (0.08, 0.32):
        found = prepared(tiny_dense, path, trade_off=trade_off).admit(1, *keys, torch.arange(5))
        assert torch.equal(found, load_gates(path, tiny_dense, trade_off).of_layer(1)(*keys))
    with pytest.raises(InputError, match=r"no gates of lambda 0\.5"):
        prepared(tiny_dense, path, trade_off=0.5)


def test_gates_of_another_model_are_refused(tiny_dense, tiny_hybrid, gate_file):
    with pytest.raises(InputError, match="was made for another model"):
        prepared(tiny_dense, gate_file(tiny_hybrid))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("write_gate", {"threshold": 1.5}, r"threshold is 1.5; gates lie in \[0, 1\]"),
        ("write_gate", {"threshold": -0.1}, "gates lie in"),
        ("write_gate", {"window": 0}, "give at least 1"),
        ("write_gate", {"comparison": "over"}, "comparison"),
        ("duo_attention", {"sinks": 0}, "at least 1 token"),
    ],
)
def test_bad_options_are_one_sentence(method, options, message):
    with pytest.raises(InputError, match=message):
        admission.build(method, options)


def test_a_window_above_the_context_is_refused():
    with pytest.raises(InputError, match="a window of 300 tokens never ends in a context of 100"):
        admission.build("write_gate", {"window": 300}).policy(None, 100)


def duo(lm, tmp_path, values, **options):
    path = tmp_path / "heads.safetensors"
    HeadProfile(torch.tensor(values)).save(path, lm)
    method = admission.build("duo_attention", {"sinks": 3, "window": 5} | options, None, {"head_profile": str(path)})
    method.prepare(lm)
    return method


PROFILE = [[0.9, 0.1], [0.2, 0.8], [0.3, 0.4]]


def test_duo_attention_gives_the_budget_to_retrieval_heads(tiny_dense, tokens, tmp_path):
    method = duo(tiny_dense, tmp_path, PROFILE)
    policy = method.policy(0.385, 100)  # (38.5 - 8) / 92 of six heads are two
    with torch.no_grad(), keys_before_rope(tiny_dense, before := {}):
        cache = admitted_cache(tiny_dense, [policy], before)
        decoder(tiny_dense.model)(tokens[None], past_key_values=cache, use_cache=True)
    assert [layer.entries()[0].tolist() for layer in cache.layers] == [[100, 8], [8, 100], [8, 8]]
    assert cache.layers[0].positions[0, 1, :8].tolist() == [0, 1, 2, 95, 96, 97, 98, 99]
    with pytest.raises(InputError, match="less than 3 sinks and a window of 5"):
        method.policy(0.05, 100)


def test_duo_attention_takes_a_published_pattern(tiny_dense, tmp_path):
    (tmp_path / "full_attention_heads.tsv").write_text("0.0\t0.0\n0.0\t1.0\n0.0\t0.0\n")
    method = duo(tiny_dense, tmp_path, PROFILE, pattern=str(tmp_path / "full_attention_heads.tsv"))
    gate = method.policy(0.3, 100).gate
    found = [gate(layer, None, torch.zeros(1, 2, 1, 32), torch.tensor([50]))[0, :, 0].tolist() for layer in range(3)]
    assert found == [[0, 0], [0, 1], [0, 0]]


def test_both_are_evaluated_with_all_checks(tiny_dense, gate_file, tmp_path):
    duo(tiny_dense, tmp_path, PROFILE)
    methods = {
        "wg_kv": {
            "admission": {"method": "write_gate", "trade_off": 0.32},
            "over": {"admission": {"threshold": [0.3, 0.6]}},
        },
        "duo": {"admission": {"method": "duo_attention", "sinks": 3, "window": 5}},
    }
    paths = {"write_gates": gate_file(tiny_dense), "head_profile": str(tmp_path / "heads.safetensors")}
    made = arms(methods, [0.4, 1.0], "experiments.wg_kv.methods", tiny_dense, paths)
    context = " The grass is green. The sky is blue." * 8
    example = Example("ruler", "vt", 0, 1, "Remember this.\n", context, (Question("\nWhat is blue?", ("sky",), 3),))
    rows = pd.DataFrame(evaluate(tiny_dense, [example], made, lambda *_: 0.0, {}))
    assert rows["ok"].all(), rows[["method", "failed_checks"]]
    held = rows.set_index(["method", "budget"])["kept_entries"]
    gates = [held[name].item() for name in ("wg_kv@threshold=0.3", "wg_kv@threshold=0.6")]
    assert 0 < gates[1] < gates[0] < held[("full", 1.0)] == held[("duo", 1.0)] > held[("duo", 0.4)]
