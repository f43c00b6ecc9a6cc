"""Write gates with random weights: what they decide is overridden, what they cost is not (WG-KV Appendix I.3)."""

from __future__ import annotations

import torch

from kvrepro.kernels.write_gate import GateWeights
from kvrepro.profiling.settings import Shape


def random_gates(shape: Shape, dtype: torch.dtype, device: str | torch.device, seed: int) -> list[GateWeights]:
    """The gates of every layer of the shape."""
    generator = torch.Generator(device).manual_seed(seed)
    heads, hidden, d = shape.kv_heads, shape.gate_hidden, shape.head_dim

    def normal(*size: int) -> torch.Tensor:
        return 0.1 * torch.randn(size, generator=generator, device=device, dtype=dtype)

    return [
        GateWeights(
            norm_pre=1 + normal(d),
            norm_post=1 + normal(d),
            w1=normal(heads, hidden, 2 * d),
            b1=normal(heads, hidden),
            w2=normal(heads, hidden),
            b2=normal(heads),
        )
        for _ in range(shape.layers)
    ]
