"""The strongest baseline's decoder: fused weights and kernels, position-wise work in chunks, steps for a CUDA graph.

The same decoder runs full attention and WG-KV, so that nothing but attention and its cache differs between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kvrepro.profiling.fused import matvec, rotary_split, silu_mul
from kvrepro.profiling.settings import Shape


@dataclass(frozen=True)
class Layer:
    """Weights of a layer; ``qkv`` and ``gate_up`` are fused along their outputs."""

    norm_attention: torch.Tensor
    qkv: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    norm_mlp: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class Weights:
    """Weights of a model, in the shapes of ``nn.Linear``, and its rotary frequencies ``[head_dim / 2]``."""

    embed: torch.Tensor
    head: torch.Tensor
    norm: torch.Tensor
    layers: tuple[Layer, ...]
    frequencies: torch.Tensor
    scaling: float
    eps: float


def fuse(model: nn.Module) -> Weights:
    """The weights of a transformers model of the Llama or Qwen3 class.

    Layers are taken out of the model one by one, so that the weights are not held twice; the model is of no use after.
    """
    layers = []
    while len(model.model.layers):
        source = model.model.layers[0]
        a, m = source.self_attn, source.mlp
        layers.append(
            Layer(
                norm_attention=source.input_layernorm.weight,
                qkv=torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]),
                q_norm=a.q_norm.weight if hasattr(a, "q_norm") else None,
                k_norm=a.k_norm.weight if hasattr(a, "k_norm") else None,
                out=a.o_proj.weight,
                norm_mlp=source.post_attention_layernorm.weight,
                gate_up=torch.cat([m.gate_proj.weight, m.up_proj.weight]),
                down=m.down_proj.weight,
            )
        )
        del model.model.layers[0]
    rotary = model.model.rotary_emb
    return Weights(
        model.model.embed_tokens.weight,
        model.lm_head.weight,
        model.model.norm.weight,
        tuple(layers),
        rotary.inv_freq.float(),
        float(rotary.attention_scaling),
        model.config.rms_norm_eps,
    )


class Lean:
    """A decoder over ``weights`` whose attention is an arm; ``layers`` are the indices of those that run."""

    def __init__(self, shape: Shape, weights: Weights, arm: Any, layers: range, chunk: int):
        self.shape, self.weights, self.arm, self.layers, self.chunk = shape, weights, arm, layers, chunk

    def _product(self, x, weight, norm=None, residual=None, glu=False):
        if (
            len(x) == 1
        ):  # which reads each weight once a row; a matrix product of two rows takes little more than of one
            return matvec(x, weight, norm, self.weights.eps, residual, glu)
        if norm is not None:
            x = F.rms_norm(x, x.shape[-1:], norm, self.weights.eps)
        if residual is not None:
            return residual.addmm_(x, weight.T)
        y = F.linear(x, weight)
        return silu_mul(y) if glu else y

    def heads(self, batch: int, n: int) -> tuple:
        """Room for queries, keys, values, and keys before the rotary position where the arm reads them."""
        s, like = self.shape, self.weights.embed
        q = like.new_empty(batch, s.query_heads, n, s.head_dim)
        k, v = (like.new_empty(batch, s.kv_heads, n, s.head_dim) for _ in range(2))
        return q, k, v, torch.empty_like(k) if self.arm.reads_keys_before_rotary else None

    def _project(self, layer: Layer, x, positions, out, start=0) -> None:
        s, w = self.shape, self.weights
        y = self._product(x, layer.qkv, layer.norm_attention)
        norms = (layer.q_norm, layer.k_norm, w.eps) if s.qk_norm else None
        rotary_split(y, positions, w.frequencies, w.scaling, (s.query_heads, s.kv_heads), norms, out, start)

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        return self._product(self._product(x, layer.gate_up, layer.norm_mlp, glu=True), layer.down, residual=x)

    @torch.inference_mode()
    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits after a context ``[n]``: ``[1, vocab]``. Attention sees all tokens at once, all else in chunks."""
        n = len(tokens)
        hidden = F.embedding(tokens, self.weights.embed)
        positions = torch.arange(n, device=tokens.device)
        parts = [slice(start, min(start + self.chunk, n)) for start in range(0, n, self.chunk)]
        for index in self.layers:
            layer, heads = self.weights.layers[index], self.heads(1, n)
            for part in parts:
                self._project(layer, hidden[part], positions[part], heads, part.start)
            attended = self.arm.prefill(index, *heads)
            del heads
            for part in parts:
                x = attended[0, :, part].transpose(0, 1).flatten(1)
                hidden[part] = self._mlp(layer, self._product(x, layer.out, residual=hidden[part]))
            del attended
        return self._product(hidden[-1:], self.weights.head, self.weights.norm)

    @torch.inference_mode()
    def step(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The most likely token after ``token`` ``[batch]`` at ``position`` ``[batch]``; no word from the host."""
        hidden = F.embedding(token, self.weights.embed)
        for index in self.layers:
            layer, heads = self.weights.layers[index], self.heads(len(token), 1)
            self._project(layer, hidden, position, heads)
            attended = self.arm.decode(index, *heads).flatten(1)
            hidden = self._mlp(layer, self._product(attended, layer.out, residual=hidden))
        self.arm.advance()
        return self._product(hidden, self.weights.head, self.weights.norm).argmax(-1)

    @torch.inference_mode()
    def attention_step(self, heads: tuple) -> None:
        """The attention of a step alone, in every layer, on given ``heads`` as :meth:`heads` makes them."""
        for index in self.layers:
            self.arm.decode(index, *heads)
        self.arm.advance()
