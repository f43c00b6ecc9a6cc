"""Random scores: the floor every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill
from kvrepro.models.tokens import sha256_tokens


@dataclass
class Random(Eviction):
    """Uniform scores from a seed and the context's tokens, independent per layer and KV head."""

    name = "random"
    seed: int = 0

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Draws on the CPU, so that every device keeps the same entries."""
        context = int(sha256_tokens(prefill.tokens.tolist())[:12], 16)
        generator = torch.Generator().manual_seed(self.seed + context)
        return [torch.rand(k.shape[:2], generator=generator).to(k.device) for k in prefill.keys]
