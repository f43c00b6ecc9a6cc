"""What an eviction method is: a score per entry, and the allocation it is used with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from kvrepro.errors import InputError
from kvrepro.models.capture import Prefill, group_gates
from kvrepro.models.loading import LoadedModel


@dataclass
class Eviction(ABC):
    """Base of all eviction methods. A method's options are its dataclass fields.

    ``allocation`` names the rule of :mod:`kvrepro.methods.allocation` that its paper defines for it. ``artifacts``
    lists fields that hold the path of something the workflow makes for the model (an estimator, statistics).
    """

    query_window: ClassVar[int] = 0  # last context tokens whose queries the method reads; a property where an option
    allocation: ClassVar[str] = "flat"
    artifacts: ClassVar[tuple[str, ...]] = ()

    def prepare(self, lm: LoadedModel) -> None:  # noqa: B027 - most methods need nothing
        """Load what the method needs for a model, once, or keep the model itself where scoring runs it again.

        Raises InputError when an artefact was made for another model.
        """

    @abstractmethod
    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Utility of every entry, higher is kept longer: per attention layer ``[kv_heads, n]`` float32."""

    def checked_score(self, prefill: Prefill) -> list[torch.Tensor]:
        """What :meth:`score` gives; InputError when that is not a tensor of ``[kv_heads, n]`` per attention layer."""
        scores, wanted = self.score(prefill), [tuple(keys.shape[:2]) for keys in prefill.keys]
        given = [tuple(getattr(score, "shape", ())) for score in scores] if isinstance(scores, list) else scores
        if given != wanted or not all(isinstance(score, torch.Tensor) for score in scores):
            raise InputError(
                f"{type(self).__name__}.score: give a list of {len(wanted)} tensors, one per attention layer, of shape "
                f"{list(wanted[0])}: KV heads and tokens."
            )
        return scores

    def layer_weights(self, prefill: Prefill) -> torch.Tensor | None:
        """Weights of the gate-proportional allocations, ``[attention_layers, kv_heads]`` or ``[attention_layers]``.

        Here the context's own output gates: the largest of each GQA group, averaged over the tokens. None for a model
        without output gates.
        """
        return group_gates(prefill)
