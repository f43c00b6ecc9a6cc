"""Selection methods of several arms over one batch of caches, and how much their tokens read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvrepro.cache.ragged import EMPTY, RaggedLayer
from kvrepro.methods.selection.base import Held, Selection


class Reading:
    """Lets every row of ``layers`` read what its selection chooses; rows with None read everything they hold.

    ``most`` is the largest number of entries that a token of a row read in a KV head of any layer, 0 where no selection
    was asked.
    """

    def __init__(self, layers: dict[int, RaggedLayer], selections: Sequence[Selection | None]):
        self.most = [0] * len(selections)
        self._rows: list[tuple[Selection, torch.Tensor]] = []
        device = next(iter(layers.values())).device
        for chosen in {id(s): s for s in selections if s is not None}.values():
            own = [row for row, s in enumerate(selections) if s is chosen]
            self._rows.append((chosen, torch.tensor(own, device=device)))
        if self._rows:
            for index, layer in layers.items():
                layer.narrow = self._narrowed(index)

    def _narrowed(self, layer: int):
        def narrow(query: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            read = positions != EMPTY
            for selection, rows in self._rows:
                held = Held(keys.index_select(0, rows), positions[rows])  # plain indexing copies five times slower
                read[rows] &= selection.select(layer, query[rows], held)
                for row, count in zip(rows.tolist(), read[rows].sum(-1).amax(-1).tolist(), strict=True):
                    self.most[row] = max(self.most[row], count)
            return read

        return narrow
