"""Selection methods of several arms over one batch of caches, and how much their tokens read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvrepro.cache.ragged import EMPTY, RaggedLayer
from kvrepro.methods.selection.base import Held, Selection


class Reading:
    """Lets every row of ``layers`` read what its selection chooses; rows with None read everything they hold.

    Nothing waits for the device and no address changes, so that a GPU can replay steps that select.
    """

    def __init__(self, layers: dict[int, RaggedLayer], selections: Sequence[Selection | None]):
        self._rows: list[tuple[Selection, torch.Tensor]] = []
        device = next(iter(layers.values())).device
        self._most = torch.zeros(len(selections), dtype=torch.long, device=device)
        for chosen in {id(s): s for s in selections if s is not None}.values():
            own = [row for row, s in enumerate(selections) if s is chosen]
            self._rows.append((chosen, torch.tensor(own, device=device)))
        if self._rows:
            for index, layer in layers.items():
                layer.narrow = self._narrowed(index)

    @property
    def most(self) -> list[int]:
        """The largest number of entries that a token of each row read in a KV head of any layer, 0 where no selection
        was asked."""
        return self._most.tolist()

    def _narrowed(self, layer: int):
        def narrow(query: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            read = positions != EMPTY
            for selection, rows in self._rows:
                held = Held(keys.index_select(0, rows), positions[rows])  # plain indexing copies five times slower
                chosen = read.index_select(0, rows) & selection.select(layer, query[rows], held)
                read.index_copy_(0, rows, chosen)
                most = torch.maximum(self._most[rows], chosen.sum(-1).amax(-1))
                self._most.index_copy_(0, rows, most)
            return read

        return narrow
