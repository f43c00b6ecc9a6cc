"""What a selection method is: of the entries held, those that a decoding token reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from kvrepro.models.loading import LoadedModel


@dataclass(frozen=True)
class Held:
    """What the caches of a layer hold when a token decodes, its own entry included; entries stand in their order.

    keys ``[batch, kv_heads, entries, head_dim]`` after RoPE; positions ``[batch, kv_heads, entries]``, negative in
    slots that hold nothing to read.
    """

    keys: torch.Tensor
    positions: torch.Tensor


@dataclass
class Selection(ABC):
    """Base of all selection methods. A method's options are its dataclass fields.

    ``budget`` is the number of entries that a token reads per KV head at most. Nothing leaves the cache. Selection acts
    where single tokens decode; context and question are prefilled densely.
    """

    artifacts: ClassVar[tuple[str, ...]] = ()
    budget: int

    def prepare(self, lm: LoadedModel) -> None:  # noqa: B027 - most methods need nothing
        """Load what the method needs for a model, once. Raises InputError when an artefact is of another model."""

    @abstractmethod
    def select(self, layer: int, query: torch.Tensor, cache: Held) -> torch.Tensor:
        """Entries to read, ``[batch, kv_heads, entries]`` bool, at most ``budget`` a head.

        layer counts over all layers of the model; query ``[batch, query_heads, head_dim]`` after RoPE. A GPU replays a
        decoding step, so what a method remembers between tokens must be in tensors that it changes in place.
        """
