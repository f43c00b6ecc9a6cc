"""Write-Gated Attention (WG-KV §3.2): full attention inside the window, weighted by the gates beyond it.

In log space the weight is a bias of the key, the same for all distant queries. On a GPU FlexAttention computes it; on a
CPU blocks of rows do, exactly and in the type of the inputs. Both take gradients of queries, keys, values and gates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from kvrepro.errors import InputError, unknown
from kvrepro.models import attention
from kvrepro.models.capture import decoder_layers
from kvrepro.models.gate import WriteGates, gate_logits
from kvrepro.models.loading import LoadedModel

NAME = "kvrepro_gated"
CHUNK = 256  #: rows whose scores are in memory at once on a CPU
#: How the logarithm of a gate near zero is bounded: the paper's log(m + ε), or the published code's clamp from below.
FLOORS = ("epsilon", "clamp")


def distant_bias(gates: torch.Tensor, floor: str = "epsilon", least: float = 1e-6) -> torch.Tensor:
    """What to add to the scores of queries beyond the window, relative to those within it (§3.2).

    ``epsilon``: log(g + ε) - log(1 + ε), which is the paper's log(m + ε) up to a constant that softmax ignores;
    ``clamp``: log(max(g, ε)), the published code's, with ε = 1e-3 there.
    """
    if floor not in FLOORS:
        raise unknown("floor", floor, FLOORS, "write_gates.floor")
    if floor == "clamp":
        return gates.clamp(min=least).log()
    return (gates + least).log() - math.log1p(least)


def gated_attention(query, key, value, bias, window: int, scale: float) -> torch.Tensor:
    """Causal attention whose score of query i for key j gains ``bias[j]`` where i - j >= window.

    query ``[batch, query_heads, n, head_dim]``, key and value ``[batch, kv_heads, n, head_dim]``, bias ``[batch,
    kv_heads, n]``, of values down to minus infinity. Returns ``[batch, query_heads, n, head_dim]``. Differentiable in
    all four tensors.
    """
    return (_on_gpu if query.is_cuda else gated_attention_exact)(query, key, value, bias, window, scale)


def gated_attention_exact(query, key, value, bias, window: int, scale: float) -> torch.Tensor:
    """:func:`gated_attention` in blocks of rows; a block's scores are computed again for its gradient."""
    recompute = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, bias))
    out = []
    for start in range(0, query.shape[2], CHUNK):
        end = min(start + CHUNK, query.shape[2])
        part = query[:, :, start:end], key[:, :, :end], value[:, :, :end], bias[:, :, :end], window, scale
        out.append(checkpoint(_rows, *part, use_reentrant=False) if recompute else _rows(*part))
    return torch.cat(out, 2)


def _rows(query, key, value, bias, window, scale):
    batch, heads, t, d = query.shape
    kv, n = key.shape[1:3]
    age = torch.arange(n - t, n, device=key.device)[:, None] - torch.arange(n, device=key.device)
    added = torch.where(age >= window, bias[:, :, None], 0.0).masked_fill(age < 0, float("-inf"))
    scores = (query.reshape(batch, kv, -1, d) @ key.mT).view(batch, kv, -1, t, n) * scale
    weights = (scores + added[:, :, None]).softmax(-1).to(value.dtype)
    return (weights.flatten(2, 3) @ value).view(batch, heads, t, d)


def _causal(b, h, i, j):
    return i >= j


@lru_cache(maxsize=16)
def causal_blocks(n: int, device: torch.device):
    """FlexAttention's mask of causal attention over ``n`` tokens."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(_causal, None, None, n, n, device=device)


@cache
def _compiled():
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def run(query, key, value, bias, mask, window: int, scale: float, group: int):
        def weigh(score, b, h, i, j):
            return score + torch.where(i - j < window, 0.0, bias[b, h // group, j])

        out, more = flex_attention(
            query, key, value, weigh, mask, scale=scale, enable_gqa=group > 1, return_aux=AuxRequest(lse=True)
        )
        return out, more.lse

    return compiled(run)


def compiled(function):
    """``function`` compiled for fixed shapes, of which a training run with mixed lengths has several."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    return torch.compile(function, dynamic=False)


class _BiasGradient(torch.autograd.Function):
    """The output unchanged; its gradient also flows to the bias (:mod:`kvrepro.kernels.gate_gradient`)."""

    @staticmethod
    def forward(ctx, out, bias, query, key, value, lse, window, scale):
        ctx.save_for_backward(out, bias, query, key, value, lse)
        ctx.numbers = window, scale
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad):
        from kvrepro.kernels.gate_gradient import gate_gradient, row_products

        out, bias, query, key, value, lse = ctx.saved_tensors
        slope = gate_gradient(query, key, value, bias, lse, grad, row_products(out, grad), *ctx.numbers)
        return grad, slope.to(bias.dtype), *[None] * 6


def _on_gpu(query, key, value, bias, window, scale):
    group = query.shape[1] // key.shape[1]
    mask = causal_blocks(query.shape[2], query.device)
    out, lse = _compiled()(query, key, value, bias.detach(), mask, window, scale, group)
    if not bias.requires_grad:
        return out
    return _BiasGradient.apply(out, bias, query.detach(), key.detach(), value.detach(), lse.detach(), window, scale)


@dataclass
class Gating:
    """How forwards inside :func:`gated` attend, and the gates they computed.

    ``sweep`` are gates of one form, mostly one set; of several, each has an equal share of the rows of a batch. Without
    ``threshold`` gates weigh entries (training, §3.2); with it they are binarised, g >= threshold, and refused entries
    are invisible beyond the window (inference, §4.2).
    """

    sweep: Sequence[WriteGates]
    window: int
    floor: str = "epsilon"
    least: float = 1e-6
    threshold: float | None = None
    seen: dict[int, torch.Tensor] = field(default_factory=dict)  #: layer -> [batch, kv_heads, n] float32

    def __post_init__(self):
        if self.window < 1:
            raise InputError(f"write_gates: a window of {self.window} tokens holds nothing; give at least 1.")

    def bias(self, layer: int, keys_pre_rope: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """The bias of the keys of a layer, which is noted in ``seen``."""
        function = _compiled_gates() if keys.is_cuda else _gates_and_bias
        sets = [gates.of_layer(layer).weights() for gates in self.sweep]
        gates, bias = function(keys_pre_rope, keys, sets, self.floor, self.least)
        self.seen[layer] = gates
        if self.threshold is None:
            return bias
        return torch.where(gates >= self.threshold, 0.0, float("-inf"))

    def attend(self, layer: int, keys_pre_rope, query, key, value, scale: float) -> torch.Tensor:
        """Attention of a layer, ``[batch, query_heads, n, head_dim]``."""
        return gated_attention(query, key, value, self.bias(layer, keys_pre_rope, key), self.window, scale)


def _gates_and_bias(pre, post, sets, floor: str, least: float) -> tuple[torch.Tensor, torch.Tensor]:
    shares = zip(pre.chunk(len(sets)), post.chunk(len(sets)), sets, strict=True)
    gates = torch.cat([gate_logits(*keys, *weights) for *keys, weights in shares]).sigmoid()
    return gates, distant_bias(gates, floor, least)


@cache
def _compiled_gates():
    return compiled(_gates_and_bias)


_active: list[Any] = []
_keys_pre_rope: dict[int, torch.Tensor] = {}


def _attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    scale = module.head_dim**-0.5 if scaling is None else scaling
    pre = _keys_pre_rope.pop(module.layer_idx)
    return _active[-1].attend(module.layer_idx, pre, query, key, value, scale).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)


@contextmanager
def keys_before_rope(lm: LoadedModel, store: dict[int, torch.Tensor]) -> Iterator[None]:
    """Note in ``store`` the keys before RoPE, ``[batch, kv_heads, t, head_dim]``, of every attention of the block.

    Where a model normalises keys, they are noted after the norm, as in the published code.
    """
    heads, handles = (lm.geometry.kv_heads, lm.geometry.head_dim), []
    for layer in lm.geometry.attention_layers:
        module = decoder_layers(lm.model)[layer].self_attn

        def note(_, __, out, layer=layer):
            store[layer] = out.reshape(*out.shape[:2], *heads).transpose(1, 2)

        handles.append(getattr(module, "k_norm", module.k_proj).register_forward_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def gated(lm: LoadedModel, gating: Any) -> Iterator[None]:
    """Forwards of whole sequences, without a cache, use ``gating.attend`` (a :class:`Gating`, or anything with that
    verb) in place of the model's attention."""
    before = lm.model.config._attn_implementation
    lm.model.set_attn_implementation(NAME)
    _active.append(gating)
    try:
        with keys_before_rope(lm, _keys_pre_rope):
            yield
    finally:
        _active.remove(gating)
        _keys_pre_rope.clear()
        lm.model.set_attn_implementation(before if before != NAME else attention.NAME)
