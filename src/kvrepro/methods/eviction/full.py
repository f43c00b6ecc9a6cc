"""The unpruned cache as a method: the child of a fork that keeps everything."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill
from kvrepro.results import FULL


@dataclass
class Full(Eviction):
    """Equal scores; used at kept fraction 1.0, where its answers must be those of the dense model."""

    name = FULL

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Zeros."""
        return [torch.zeros(k.shape[:2], device=k.device) for k in prefill.keys]
