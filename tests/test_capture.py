"""What the hooks see is what the model computed, under transformers' own code."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers.models.qwen3_5 import modeling_qwen3_5

from kvrepro.models import attention, capture
from kvrepro.models.capture import decoder_layers, prefill


@pytest.fixture
def stock(tiny_hybrid):
    """The model under transformers' own sdpa attention."""
    tiny_hybrid.model.set_attn_implementation("sdpa")
    yield tiny_hybrid
    tiny_hybrid.model.set_attn_implementation(attention.NAME)


def _stock_attention(lm, tokens):
    """Per attention layer what the module got and returned: hidden states, rotary (cos, sin), output; and the cache."""
    seen, handles = {}, []
    for i in lm.geometry.attention_layers:

        def hook(module, args, kwargs, out, index=i):
            seen[index] = kwargs["hidden_states"], kwargs["position_embeddings"], out[0]

        handles.append(decoder_layers(lm.model)[i].self_attn.register_forward_hook(hook, with_kwargs=True))
    cache = DynamicCache(config=lm.model.config)
    with torch.no_grad():
        lm.model(tokens[None], past_key_values=cache, use_cache=True)
    for handle in handles:
        handle.remove()
    return seen, cache


def test_queries_keys_values_are_those_of_stock_sdpa(stock, tokens):
    seen, cache = _stock_attention(stock, tokens)
    stock.model.set_attn_implementation(attention.NAME)
    parent = prefill(stock, tokens, query_window=len(tokens))
    g = stock.geometry
    for number, i in enumerate(g.attention_layers):
        hidden, (cos, sin), _ = seen[i]
        module = decoder_layers(stock.model)[i].self_attn
        q = module.q_proj(hidden).unflatten(-1, (g.query_heads, 2 * g.head_dim))[..., : g.head_dim]
        k = module.k_proj(hidden).unflatten(-1, (g.kv_heads, g.head_dim))
        q, k = module.q_norm(q).transpose(1, 2), module.k_norm(k).transpose(1, 2)
        q, k = modeling_qwen3_5.apply_rotary_pos_emb(q, k, cos, sin)
        v = module.v_proj(hidden).unflatten(-1, (g.kv_heads, g.head_dim)).transpose(1, 2)
        torch.testing.assert_close(parent.queries[number], q[0], rtol=0, atol=2e-6)
        torch.testing.assert_close(parent.keys[number], k[0], rtol=0, atol=2e-6)
        torch.testing.assert_close(parent.values[number], v[0], rtol=0, atol=2e-6)
        torch.testing.assert_close(parent.keys[number], cache.layers[i].keys[0], rtol=0, atol=2e-6)


def test_signals_are_what_the_delta_rule_was_given(tiny_hybrid, tokens, monkeypatch):
    original, given = modeling_qwen3_5.torch_chunk_gated_delta_rule, []

    def recording(query, key, value, *args, g, beta, **kwargs):
        given.append((beta[0], g[0], value[0].norm(dim=-1)))
        return original(query, key, value, *args, g=g, beta=beta, **kwargs)

    monkeypatch.setattr(modeling_qwen3_5, "torch_chunk_gated_delta_rule", recording)
    signals = prefill(tiny_hybrid, tokens).signals
    g = tiny_hybrid.geometry
    assert signals.shape == (len(g.gdn_layers), len(tokens), g.gdn_heads, 3)
    assert len(given) == len(g.gdn_layers)
    torch.testing.assert_close(signals, torch.stack([torch.stack(x, -1) for x in given]), rtol=1e-5, atol=1e-6)


def test_rebuilt_attention_output_is_the_modules(stock, tokens):
    seen, _ = _stock_attention(stock, tokens)
    stock.model.set_attn_implementation(attention.NAME)
    with capture.output_gates(stock) as gates:
        parent = prefill(stock, tokens, query_window=len(tokens))
    g, n = stock.geometry, len(tokens)
    for number, i in enumerate(g.attention_layers):
        module = decoder_layers(stock.model)[i].self_attn
        k = parent.keys[number].repeat_interleave(g.group, 0)
        v = parent.values[number].repeat_interleave(g.group, 0)
        logits = parent.queries[number] @ k.mT * g.head_dim**-0.5
        out = logits.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")).softmax(-1) @ v
        gated = out.transpose(0, 1) * gates[i][0]
        rebuilt = gated.flatten(1) @ module.o_proj.weight.T
        torch.testing.assert_close(rebuilt, seen[i][2][0], rtol=0, atol=2e-5)
        torch.testing.assert_close(parent.output_gates[number], gates[i][0].mean(-1).T)


def test_observers_leave_nothing_behind(tiny_hybrid, tokens):
    before = {id(m): len(m._forward_hooks) for m in tiny_hybrid.model.modules()}
    prefill(tiny_hybrid, tokens)
    assert not attention._observers
    assert before == {id(m): len(m._forward_hooks) for m in tiny_hybrid.model.modules()}
