"""What a bounding method is: a budget that holds at every token, and how much each entry matters on overflow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from kvrepro.cache.bounded import Limit
from kvrepro.errors import InputError
from kvrepro.models.loading import LoadedModel


@dataclass
class Bounding(ABC):
    """Base of all bounding methods. A method's options are its dataclass fields.

    ``budget`` is the number of entries a KV head holds on average over the whole model, at most and at any token, of
    the context as of the answer. When a token takes the cache beyond it, each head gives up the ``share`` of its
    entries that matter least. The youngest ``window`` tokens are never given up, and their queries tell what matters.
    """

    artifacts: ClassVar[tuple[str, ...]] = ()
    budget: int
    window: int = 256
    share: float = 0.1

    def __post_init__(self):
        name = getattr(self, "name", type(self).__name__)
        if self.window < 1 or not 0 < self.share <= 1:
            raise InputError(f"{name}: window must be at least 1 token and share in (0, 1].")
        if self.budget <= self.window:
            raise InputError(
                f"{name}: a budget of {self.budget} entries a head has no room beside the {self.window} tokens that "
                f"are observed and never evicted; raise it above {self.window} or lower {name}.window."
            )

    def prepare(self, lm: LoadedModel) -> None:  # noqa: B027 - most methods need nothing
        """Load what the method needs for a model, once. Raises InputError when an artefact is of another model."""

    @abstractmethod
    def importance(
        self, queries: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor, evictable: torch.Tensor
    ) -> torch.Tensor:
        """How much each entry of a layer matters, higher is kept longer: ``[rows, kv_heads, entries]`` float32.

        queries ``[rows, query_heads, window, head_dim]`` of the youngest tokens and keys ``[rows, kv_heads, entries,
        head_dim]``, both after RoPE; entries stand in their order. visible ``[rows, kv_heads, window, entries]`` says
        what each query sees, evictable ``[rows, kv_heads, entries]`` what may be given up. It must not depend on the
        budget: rows of methods that differ in it alone are scored together.
        """

    def limit(self) -> Limit:
        """The limit that a cache obeys."""
        alike = type(self), repr(replace(self, budget=self.window + 1))
        return Limit(self.budget, self.window, self.share, self.importance, alike)
