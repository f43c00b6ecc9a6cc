"""Attention of the two methods with the caches they fill, as both protocols call it.

An arm has the same four verbs for every method: ``prefill`` a layer, ``fill`` a layer without attention (a cache for
decoding, or for the layers that a pass does not time), ``decode`` one token in a layer, and ``advance`` after a step.
Time spent in the parts ``gate`` and ``attention`` (planning, cache allocation, page tables, writing, promotion and the
attention kernel) goes to the arm's clock.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.cache_utils import DynamicLayer

from kvrepro.profiling.clock import Clock
from kvrepro.profiling.settings import Shape

#: Dense kernels behind torch's scaled dot product attention, by the names that rows use.
BACKENDS = {"flash_attention_2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str, causal: bool = True
) -> torch.Tensor:
    """Dense attention, q ``[batch, query_heads, t, head_dim]``, k and v ``[batch, kv_heads, n, head_dim]``.

    ``backend`` is a name of BACKENDS on a GPU; on a CPU torch chooses its own kernel.
    """
    with sdpa_kernel(BACKENDS[backend]) if q.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


class Dense:
    """Full attention over the cache that Transformers' models have by default, which is concatenated at every step
    ("a standard KV cache", Appendix I.1)."""

    reads_keys_before_rotary = False

    def __init__(self, shape: Shape, backend: str, clock: Clock):
        self.clock, self.backend = clock, backend
        self.length = 0
        self.cache = [DynamicLayer() for _ in range(shape.layers)]

    def fill(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Allocate and write the cache of a layer: k, v ``[batch, kv_heads, n, head_dim]``."""
        self.cache[layer].update(k, v)
        self.length = k.shape[2]

    def prefill(self, layer, q, k, v, pre=None) -> torch.Tensor:
        """Attention of all tokens of a context; fills the cache. Returns ``[batch, query_heads, n, head_dim]``."""
        with self.clock.span("attention"):
            self.fill(layer, k, v)
            return dense_attention(q, k, v, self.backend)

    def decode(self, layer, q, k, v, pre=None) -> torch.Tensor:
        """Attention of one new token per row, ``t`` = 1; appends it."""
        with self.clock.span("attention"):
            return dense_attention(q, *self.cache[layer].update(k, v), self.backend, causal=False)

    def advance(self) -> None:
        """The token that :meth:`decode` appended in every layer is now part of the context."""
        self.length += 1

    def check(self) -> None:
        """Nothing to do: a step that memory has no room for fails by itself."""

    def cache_bytes(self) -> int:
        """Bytes of the keys and values held."""
        held = [x for layer in self.cache if layer.is_initialized for x in (layer.keys, layer.values)]
        return sum(x.numel() * x.element_size() for x in held)
