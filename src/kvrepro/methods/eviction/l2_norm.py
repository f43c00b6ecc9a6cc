"""L2 norm: keep the keys of low norm, which attract attention (Devoto et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill


@dataclass
class L2Norm(Eviction):
    """Score = -‖key‖, keys as cached (RoPE does not change a norm), under a flat budget in every layer.

    The published runs leave the first two layers of a dense model unpruned; here every attention layer has its budget,
    so that the model-wide total is that of the other methods.
    """

    name = "l2_norm"

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Norms, negated."""
        return [-keys.float().norm(dim=-1) for keys in prefill.keys]
