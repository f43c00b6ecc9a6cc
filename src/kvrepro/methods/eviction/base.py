"""What an eviction method is: a score per entry, and the allocation it is used with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kvrepro.models.capture import Prefill
from kvrepro.models.geometry import Geometry


@dataclass
class Eviction:
    """Base of all eviction methods. A method's options are its dataclass fields.

    ``allocation`` names the rule of :mod:`kvrepro.methods.allocation` that its paper defines for it. ``artifacts``
    lists fields that hold the path of something the workflow makes for the model (an estimator, statistics).
    """

    allocation: ClassVar[str] = "flat"
    artifacts: ClassVar[tuple[str, ...]] = ()

    def prepare(self, geometry: Geometry, fingerprint: str) -> None:
        """Load what the method needs for a model, once. Raises InputError when it was made for another model."""

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Utility of every entry, higher is kept longer: per attention layer ``[kv_heads, n]`` float32."""
        raise TypeError(f"{type(self).__name__} must define score(prefill).")

    def layer_weights(self, prefill: Prefill) -> torch.Tensor | None:
        """Weights ``[attention_layers]`` for an allocation that is not flat."""
        return None
