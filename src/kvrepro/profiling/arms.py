"""The arm of a job: WG-KV over the dual cache, and what stands for full attention under each protocol."""

from __future__ import annotations

import torch

from kvrepro.cache.dual import DualCache, pages_for
from kvrepro.kernels.vertical_slash import vertical_slash_attention
from kvrepro.kernels.vertical_slash_plan import plan
from kvrepro.kernels.write_gate import write_gate
from kvrepro.profiling.attention import Dense
from kvrepro.profiling.clock import Clock
from kvrepro.profiling.gates import random_gates
from kvrepro.profiling.masks import random_admission
from kvrepro.profiling.settings import Job, Shape

THRESHOLD = 0.1  # τ of §5.2
PREFILL_BACKEND = {"paper": "flash_attention_2", "strongest_baseline": "cudnn"}


class Paged:
    """Attention over a :class:`DualCache`: WG-KV with its gates, or, with everything admitted, dense decoding by the
    same split-KV kernel.

    Gates are computed and compared with the threshold; then the random masks replace their decisions (Appendix I.3).
    """

    def __init__(self, shape: Shape, job: Job, slots: int, clock: Clock, device: str, dtype: torch.dtype, seed: int):
        self.clock, self.shape, self.job = clock, shape, job
        self.gated = job.method == "wg_kv"
        self.reads_keys_before_rotary = self.gated
        self.length, self._steps = 0, slots - job.tokens
        self._dtype, self._device = dtype, device
        heads = (shape.layers, job.batch, shape.kv_heads)
        self.admitted = random_admission(*heads, job.tokens, job.kept, seed, device)
        older = self.admitted[..., : max(0, job.tokens - job.window)].sum(-1)
        self._pages = pages_for(older + self._steps, job.window)
        coin = torch.rand(heads, generator=torch.Generator(device).manual_seed(seed), device=device) < job.kept
        self._below = torch.where(coin, 2.0, -1.0)  # a gate is below 2 and not below -1: admit, or do not
        self._always = torch.ones(heads, dtype=torch.bool, device=device)
        self.gates = random_gates(shape, dtype, device, seed) if self.gated else None
        self.cache: DualCache | None = None

    def _allocate(self) -> DualCache:
        if self.cache is None:
            s, job = self.shape, self.job
            self.cache = DualCache.allocate(
                layers=s.layers,
                batch=job.batch,
                kv_heads=s.kv_heads,
                head_dim=s.head_dim,
                window=job.window,
                pages=self._pages,
                tokens=job.tokens + self._steps,
                dtype=self._dtype,
                device=self._device,
            )
        return self.cache

    def fill(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write a context to a layer's cache without attention: k, v ``[batch, kv_heads, n, head_dim]``."""
        self._allocate().prefill(layer, k, v, self.admitted[layer])
        self.length = k.shape[2]

    def prefill(self, layer, q, k, v, pre=None) -> torch.Tensor:
        """Attention of all tokens of a context; fills the cache. Returns ``[batch, query_heads, n, head_dim]``."""
        with self.clock.span("gate"):
            admitted = write_gate(pre, k, self.gates[layer]) >= THRESHOLD
            admitted.copy_(self.admitted[layer])
        with self.clock.span("attention"):
            cache = self._allocate()
            with self.clock.span("plan"):
                planned = plan(admitted, self.job.window)
            out = vertical_slash_attention(q, k, v, admitted, self.job.window, plan=planned)
            with self.clock.span("write"):
                cache.prefill(layer, k, v, admitted)
        self.length = k.shape[2]
        return out

    def decode(self, layer, q, k, v, pre=None) -> torch.Tensor:
        """Promote, append one new token per row, and attend: ``[batch, query_heads, 1, head_dim]``."""
        if self.gated:
            with self.clock.span("gate"):
                admitted = write_gate(pre, k, self.gates[layer])[..., 0] < self._below[layer]
        else:
            admitted = self._always[layer]
        with self.clock.span("attention"):
            self.cache.append(layer, k[:, :, 0], v[:, :, 0], admitted)
            return self.cache.attend(layer, q[:, :, 0])[:, :, None]

    def advance(self) -> None:
        """The token that :meth:`decode` appended in every layer is now part of the context."""
        self.length += 1

    def check(self) -> None:
        """PoolExhausted when a step found no page, which would have made it cheaper than it is."""
        self.cache.check()

    def cache_bytes(self) -> int:
        """Bytes of the pages in use and of the page tables."""
        return self.cache.bytes_held()


def make_arm(shape: Shape, job: Job, slots: int, clock: Clock, device: str, dtype: torch.dtype, seed: int):
    """The arm of a job, WG-KV's with room for ``slots`` tokens. Full attention decodes over Transformers' own cache in
    the paper's protocol, and with our own split-KV kernel over pages in the strongest baseline."""
    if job.method == "wg_kv" or (job.phase == "decode" and job.protocol == "strongest_baseline"):
        return Paged(shape, job, slots, clock, device, dtype, seed)
    return Dense(shape, PREFILL_BACKEND[job.protocol], clock)
