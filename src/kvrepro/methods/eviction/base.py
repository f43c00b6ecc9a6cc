"""What an eviction method is: a score per entry, and the allocation it is used with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kvrepro.models.capture import Prefill
from kvrepro.models.loading import LoadedModel


@dataclass
class Eviction:
    """Base of all eviction methods. A method's options are its dataclass fields.

    ``allocation`` names the rule of :mod:`kvrepro.methods.allocation` that its paper defines for it. ``artifacts``
    lists fields that hold the path of something the workflow makes for the model (an estimator, statistics).
    """

    allocation: ClassVar[str] = "flat"
    artifacts: ClassVar[tuple[str, ...]] = ()

    def prepare(self, lm: LoadedModel) -> None:
        """Load what the method needs for a model, once, or keep the model itself where scoring runs it again.

        Raises InputError when an artefact was made for another model.
        """

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Utility of every entry, higher is kept longer: per attention layer ``[kv_heads, n]`` float32."""
        raise TypeError(f"{type(self).__name__} must define score(prefill).")

    def layer_weights(self, prefill: Prefill) -> torch.Tensor | None:
        """Weights of the gate-proportional allocations, ``[attention_layers, kv_heads]`` or ``[attention_layers]``.

        Here the context's own output gates: the largest of each GQA group, averaged over the tokens. None for a model
        without output gates.
        """
        if prefill.output_gates is None:
            return None
        kv_heads = prefill.geometry.kv_heads
        return torch.stack([g.unflatten(0, (kv_heads, -1)).amax(1).mean(-1) for g in prefill.output_gates])
