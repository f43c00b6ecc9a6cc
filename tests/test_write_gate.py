"""Write gates and Write-Gated Attention against the equations of WG-KV §3.2, written out one entry at a time."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvrepro.errors import InputError
from kvrepro.kernels import gate_gradient as gradient
from kvrepro.kernels.common import INTERPRETED
from kvrepro.kernels.write_gate import GateWeights, write_gate_reference
from kvrepro.models.attention import NAME
from kvrepro.models.capture import decoder, decoder_layers
from kvrepro.models.gate import WriteGates, initial, join_gates, load_gates, save_gates
from kvrepro.models.gated_attention import (
    Gating,
    distant_bias,
    gated,
    gated_attention,
    gated_attention_exact,
    keys_before_rope,
)
from kvrepro.models.geometry import geometry
from kvrepro.models.loading import LoadedModel


def gates_of(lm, window=8, hidden=12, seed=0) -> WriteGates:
    return WriteGates(initial(lm.geometry, hidden, seed), lm.geometry, lm.fingerprint, lm.name, window, 0.08)


@pytest.fixture(scope="module")
def tiny_llama() -> LoadedModel:
    """Llama class: no norm of queries and keys."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, attn_implementation=NAME,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return LoadedModel("llama", model, None, geometry(config), torch.device("cpu"), torch.float32, "0" * 16)


def gate_by_hand(layer, pre, post) -> float:
    """One gate: both norms, both layers, GELU, sigmoid."""
    x = []
    for key, norm in ((pre, layer[0]), (post, layer[1])):
        size = math.sqrt(sum(v * v for v in key) / len(key) + 1e-6)
        x += [v / size * w for v, w in zip(key, norm, strict=True)]
    total = layer[5]
    for row, b, w in zip(layer[2], layer[3], layer[4], strict=True):
        h = sum(a * c for a, c in zip(row, x, strict=True)) + b
        total += w * h * 0.5 * (1 + math.erf(h / math.sqrt(2)))
    return 1 / (1 + math.exp(-total))


def attention_by_hand(query, key, value, gates, window, epsilon):
    """The multiplicative form of §3.2, in float64."""
    q, k, v, g = (x.double() for x in (query, key, value, gates))
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                weights = [
                    torch.exp(q[b, h, i] @ k[b, h // group, j] / math.sqrt(q.shape[3]))
                    * ((1.0 if i - j < window else g[b, h // group, j]) + epsilon)
                    for j in range(i + 1)
                ]
                out[b, h, i] = sum(w * v[b, h // group, j] for j, w in enumerate(weights)) / sum(weights)
    return out


def drawn(n=21, d=8, heads=4, kv=2, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, h, n, d, generator=g, dtype=dtype) for h in (heads, kv, kv))
    return q, k, v, torch.rand(2, kv, n, generator=g, dtype=dtype)


def test_gate_is_the_equation():
    lm_shape = initial(geometry(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=32)), 5, seed=3)
    layer = lm_shape[0]
    with torch.no_grad():
        layer.norm_pre.uniform_(0.5, 2)
        layer.norm_post.uniform_(0.5, 2)
    pre, post = torch.randn(2, 1, 2, 4, 16)
    found = layer(pre, post)
    for head in range(2):
        weights = [w.tolist() for w in (layer.norm_pre, layer.norm_post, *(x[head] for x in layer.weights()[2:]))]
        for t in range(4):
            assert found[0, head, t].item() == pytest.approx(
                gate_by_hand(weights, pre[0, head, t].tolist(), post[0, head, t].tolist()), abs=1e-6
            )


def test_gate_is_the_kernels_function(tiny_dense):
    layer = initial(tiny_dense.geometry, 12, seed=1)[0]
    pre, post = torch.randn(2, 1, 2, 50, 32)
    torch.testing.assert_close(layer(pre, post), write_gate_reference(pre, post, GateWeights(*layer.weights())))


@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize("epsilon", [1e-6, 0.01])
def test_gated_attention_is_the_equation(window, epsilon):
    q, k, v, gates = drawn()
    bias = distant_bias(gates, "epsilon", epsilon)
    expected = attention_by_hand(q, k, v, gates, window, epsilon)
    torch.testing.assert_close(gated_attention(q, k, v, bias, window, 8**-0.5), expected, atol=1e-12, rtol=1e-10)


def test_blocks_of_rows_change_nothing():
    q, k, v, gates = drawn(n=600, heads=2, kv=1)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, gates)]
    out = gated_attention_exact(*leaves[:3], distant_bias(leaves[3]), 16, 0.3)
    age = torch.arange(600)[:, None] - torch.arange(600)
    again = [x.clone().requires_grad_() for x in (q, k, v, gates)]
    added = torch.where(age >= 16, distant_bias(again[3])[:, :, None], 0.0).masked_fill(age < 0, float("-inf"))
    whole = (again[0] @ again[1].mT * 0.3 + added).softmax(-1) @ again[2]
    torch.testing.assert_close(out, whole)
    target = torch.randn_like(out)
    for x, y in zip(leaves, again, strict=True):
        a, b = (torch.autograd.grad((o * target).sum(), t, retain_graph=True)[0] for o, t in ((out, x), (whole, y)))
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("n", "d", "window", "heads"),
    [(70, 16, 9, (4, 2)), (130, 24, 64, (2, 2)), (65, 16, 80, (1, 1)), (300, 16, 9, (2, 1))],
)
def test_gradient_kernel(n, d, window, heads):
    q, k, v, gates = drawn(n, d, *heads, dtype=torch.float32)
    bias = distant_bias(gates).requires_grad_()
    out = gated_attention_exact(q, k, v, bias, window, d**-0.5)
    grad = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, bias, grad)
    age = torch.arange(n)[:, None] - torch.arange(n)
    added = torch.where(age >= window, bias[:, :, None], 0.0).masked_fill(age < 0, float("-inf"))
    group = heads[0] // heads[1]
    scores = q @ k.repeat_interleave(group, 1).mT * d**-0.5 + added.repeat_interleave(group, 1)
    there = "cpu" if INTERPRETED else "cuda"
    delta = gradient.row_products(out.detach().to(there), grad.to(there)).cpu()
    torch.testing.assert_close(delta, (out * grad).sum(-1).detach(), atol=1e-5, rtol=1e-5)
    args = (q, k, v, bias.detach(), scores.logsumexp(-1).detach(), grad, delta, window, d**-0.5)
    torch.testing.assert_close(gradient.gate_gradient_reference(*args), expected, atol=1e-4, rtol=1e-4)
    moved = [x.to(there) if isinstance(x, torch.Tensor) else x for x in args]
    torch.testing.assert_close(gradient.gate_gradient(*moved).cpu(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid", "tiny_llama"])
def test_keys_before_rope_and_gates_of_a_model(model, request, tokens):
    """The noted keys, rotated, are the keys that attention sees; open gates leave the model as it is."""
    lm = request.getfixturevalue(model)
    gates = gates_of(lm)
    with torch.no_grad():
        for layer in gates.layers:
            layer.b2.fill_(40.0)  # every gate is one
    seen = {}

    class Looking(Gating):
        def attend(self, layer, pre, query, key, *args):
            seen[layer] = pre, key
            return super().attend(layer, pre, query, key, *args)

    gating = Looking([gates], 8)
    with torch.no_grad():
        plain = decoder(lm.model)(tokens[None], use_cache=False).last_hidden_state
        with gated(lm, gating):
            open_ = decoder(lm.model)(tokens[None], use_cache=False).last_hidden_state
        again = decoder(lm.model)(tokens[None], use_cache=False).last_hidden_state
        cos, sin = decoder(lm.model).rotary_emb(plain, torch.arange(100)[None])
    torch.testing.assert_close(open_, plain, atol=1e-4, rtol=1e-4)
    assert torch.equal(plain, again) and set(gating.seen) == set(lm.geometry.attention_layers)
    rotary = cos.shape[-1]
    for pre, key in seen.values():
        a, b = pre[..., :rotary], pre[..., rotary:]
        half = torch.cat([-a[..., rotary // 2 :], a[..., : rotary // 2]], -1)
        torch.testing.assert_close(torch.cat([a * cos + half * sin, b], -1), key)


def test_hard_gates_hide_what_is_refused(tiny_dense, tokens):
    """A forward with binarised gates is, layer by layer, a forward under the mask of §4.2."""
    gates = gates_of(tiny_dense, seed=5)
    for layer in gates.layers:
        layer.w2.data.mul_(30)  # gates on both sides of the threshold
    window, tau = 8, 0.4
    gating, masks = Gating([gates], window, threshold=tau), {}
    with torch.no_grad(), gated(tiny_dense, gating):
        found = decoder(tiny_dense.model)(tokens[None], use_cache=False).last_hidden_state

    class Masked:
        def attend(self, layer, pre, query, key, value, scale):
            g = gates.of_layer(layer)(pre, key)
            age = torch.arange(100)[:, None] - torch.arange(100)
            mask = ((age < window) | (g >= tau)[:, :, None]) & (age >= 0)
            masks[layer] = mask
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask.repeat_interleave(2, 1), scale=scale, enable_gqa=True
            )

    with torch.no_grad(), gated(tiny_dense, Masked()):
        expected = decoder(tiny_dense.model)(tokens[None], use_cache=False).last_hidden_state
    assert 0.1 < torch.stack([(g >= tau).float().mean() for g in gating.seen.values()]).mean() < 0.9
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_gates_are_loaded_for_their_model_only(tiny_dense, tiny_hybrid, tmp_path):
    gates, path = gates_of(tiny_dense), tmp_path / "gates.safetensors"
    gates.training = {"steps": 3}
    save_gates([gates], path)
    again = load_gates(path, tiny_dense)
    assert (again.window, again.trade_off, again.training) == (8, 0.08, {"steps": 3})
    for a, b in zip(gates.layers.state_dict().values(), again.layers.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match="was made for another model"):
        load_gates(path, tiny_hybrid)
    with pytest.raises(InputError, match="do not go into one file"):
        save_gates([gates, gates_of(tiny_hybrid)], path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match="truncated or corrupt"):
        load_gates(path, tiny_dense)
    with pytest.raises(InputError, match="is missing; train the gates"):
        load_gates(tmp_path / "none.safetensors", tiny_dense)


def test_gates_of_several_lambdas_go_into_one_file(tiny_dense, tiny_hybrid, tmp_path):
    sweep, paths = [gates_of(tiny_dense, seed=seed) for seed in (0, 1)], [tmp_path / "a", tmp_path / "b"]
    sweep[1].trade_off, sweep[1].training = 0.5, {"steps": 3}
    for gates, path in zip(sweep, paths, strict=True):
        save_gates([gates], path)
    join_gates(paths, tmp_path / "joined")
    for gates in sweep:
        again = load_gates(tmp_path / "joined", tiny_dense, gates.trade_off)
        assert (again.window, again.training) == (gates.window, gates.training)
        for a, b in zip(gates.layers.state_dict().values(), again.layers.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    save_gates([gates_of(tiny_hybrid)], paths[1])
    with pytest.raises(InputError, match="was made for another model"):
        join_gates(paths, tmp_path / "joined")


def test_a_window_and_a_floor_must_make_sense(tiny_dense):
    with pytest.raises(InputError, match="give at least 1"):
        Gating([gates_of(tiny_dense)], 0)
    with pytest.raises(InputError, match="did you mean 'epsilon'"):
        distant_bias(torch.ones(1), "epsilom")


def test_keys_before_rope_are_those_of_the_projection(tiny_llama, tokens):
    store, taken = {}, {}
    first = decoder_layers(tiny_llama.model)[0].self_attn
    handle = first.k_proj.register_forward_hook(lambda m, i, out: taken.update(k=out))
    with torch.no_grad(), keys_before_rope(tiny_llama, store):
        tiny_llama.model(tokens[None], use_cache=False)
    handle.remove()
    assert torch.equal(store[0][0, 1], taken["k"][0, :, 16:32])
