"""Per-head statistics of a model's queries by rotary frequency: what TriAttention knows of queries before any is asked.

A head's dimensions are taken in pairs that RoPE rotates together, as complex numbers (real parts in the first half of
the rotated dimensions, imaginary parts in the second). Dimensions that RoPE leaves alone are paired in the same way and
are bands of frequency zero (GateSight Appendix G).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from kvrepro import tensorfile
from kvrepro.models.loading import LoadedModel

KIND = "query_statistics"
REMEDY = "run the workflow to measure them"


@dataclass
class QueryStatistics:
    """Means over queries as they are before RoPE and after the query norm, if any; for all layers and query heads."""

    mean: torch.Tensor  #: [attention_layers, query_heads, bands] complex64, E[q_f]
    magnitude: torch.Tensor  #: [attention_layers, query_heads, bands] float32, E|q_f|
    frequencies: torch.Tensor  #: [bands] float32, radians per token

    def save(self, path: str | Path, lm: LoadedModel, tokens: int) -> None:
        """Write the statistics, measured on ``tokens`` tokens, with the model they belong to."""
        tensors = {
            "mean": torch.view_as_real(self.mean),
            "magnitude": self.magnitude,
            "frequencies": self.frequencies,
        }
        tensorfile.write(path, tensors, {"kind": KIND, **lm.identity(), "tokens": tokens})


def load(path: str | Path, lm: LoadedModel) -> QueryStatistics:
    """Statistics from their file; InputError when it is missing, corrupt or another model's."""
    file = tensorfile.TensorFile(path, KIND, REMEDY)
    file.belongs_to(lm.fingerprint, lm.geometry.as_dict())
    found = {name: file.read(name) for name in ("mean", "magnitude", "frequencies")}
    for name, x in found.items():
        if not torch.isfinite(x).all():
            raise file.fault(f"holds values of {name} that are not finite")
    return QueryStatistics(torch.view_as_complex(found["mean"]), found["magnitude"], found["frequencies"])


def bands(x: torch.Tensor, rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Real and imaginary parts ``[..., head_dim / 2]`` of vectors ``[..., head_dim]``, rotated bands first."""
    rotated, still = x[..., :rotary_dim], x[..., rotary_dim:]
    (r, i), (still_r, still_i) = rotated.chunk(2, -1), still.chunk(2, -1) if still.shape[-1] else (still, still)
    return torch.cat([r, still_r], -1), torch.cat([i, still_i], -1)
