"""What an admission method is: a gate per entry before the write, and the policy it makes for a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kvrepro.cache.admitted import Policy
from kvrepro.models.loading import LoadedModel


@dataclass
class Admission:
    """Base of all admission methods. A method's options are its dataclass fields.

    ``by_fraction`` says whether the method takes a kept fraction; one that does not, such as a trained gate, decides
    itself how much it holds, and the evaluation measures that. ``artifacts`` lists fields that hold the path of
    something the workflow makes for the model.
    """

    by_fraction: ClassVar[bool] = False
    artifacts: ClassVar[tuple[str, ...]] = ()

    def prepare(self, lm: LoadedModel) -> None:
        """Load what the method needs for a model, once. Raises InputError when an artefact is of another model."""

    def admit(
        self, layer: int, keys_pre_rope: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Gates in [0, 1], ``[batch, kv_heads, t]``, of new entries of a layer (counted over all layers of the model).

        keys_pre_rope and keys ``[batch, kv_heads, t, head_dim]``, before and after RoPE; positions ``[t]`` or
        ``[batch, 1, t]``.
        """
        raise TypeError(f"{type(self).__name__} must define admit(layer, keys_pre_rope, keys, positions).")

    def policy(self, kept: float | None, n: int) -> Policy:
        """The policy for a context of ``n`` tokens; ``kept`` is None unless the method goes by fractions, and then
        about ``kept * n`` entries are held per head. Raises InputError when that cannot be met."""
        raise TypeError(f"{type(self).__name__} must define policy(kept, n).")
