"""Random scores: the floor every method must beat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill


@dataclass
class Random(Eviction):
    """Uniform scores from a seed and the context's tokens, independent per layer and KV head."""

    name = "random"
    seed: int = 0

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Draws on the CPU, so that every device keeps the same entries."""
        context = hashlib.sha256(prefill.tokens.cpu().numpy().tobytes()).digest()
        generator = torch.Generator().manual_seed(self.seed + int.from_bytes(context[:6], "little"))
        return [torch.rand(k.shape[:2], generator=generator).to(k.device) for k in prefill.keys]
