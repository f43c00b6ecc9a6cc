"""KeyDiff: keep the keys least similar to their head's mean key (Park et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvrepro.errors import InputError
from kvrepro.methods.blocks import head_blocks
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill

ANCHORS = ("mean", "mean_of_normalised")


@dataclass
class KeyDiff(Eviction):
    """Score = -cos(anchor, key), keys as cached after RoPE, one pass over the whole prefix.

    ``anchor``: ``mean`` is the unnormalised mean key, as GateSight Appendix G runs it; ``mean_of_normalised`` is the
    mean of L2-normalised keys, as the method was published.
    """

    name = "keydiff"
    anchor: str = "mean"

    def __post_init__(self):
        if self.anchor not in ANCHORS:
            raise InputError(f"keydiff.anchor is {self.anchor!r}; allowed: {', '.join(ANCHORS)}.")

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Cosine to the anchor, negated."""
        per_entry = 4 * prefill.geometry.head_dim
        return [
            torch.cat([self._of_heads(keys[heads].float()) for heads in head_blocks(keys, per_entry)])
            for keys in prefill.keys
        ]

    def _of_heads(self, keys: torch.Tensor) -> torch.Tensor:
        """Scores ``[heads, n]`` of keys ``[heads, n, head_dim]``."""
        base = F.normalize(keys, dim=-1) if self.anchor == "mean_of_normalised" else keys
        return -F.cosine_similarity(base.mean(1, keepdim=True), keys, dim=-1)
