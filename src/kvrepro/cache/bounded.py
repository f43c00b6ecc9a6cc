"""A hard budget over all layers and heads of a cache, in prefill and decoding alike (WG-KV Appendix K).

After every token a row that holds more than its budget gives up entries of each head until it is within it. What comes
before the next overflow is plain attention over what is held, so tokens may be fed together up to there: the result is
that of feeding them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kvrepro.cache.ragged import EMPTY, RaggedLayer, packing
from kvrepro.errors import InputError

#: ``importance(queries, keys, visible, evictable)``: see :class:`kvrepro.methods.bounding.base.Bounding`.
Importance = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Limit:
    """What a bounding method decides: entries a head on average over the model, the youngest tokens that stay and whose
    queries are observed, and the share of a head's other entries that goes on overflow."""

    budget: int
    window: int
    share: float
    importance: Importance


class Bounds:
    """The limits of the rows of a cache, one a row, None where there is none. ``layers`` are its attention layers.

    ``evictions`` counts how often each row overflowed, ``peaks`` the most entries it held after a token, over all
    layers and heads. ``steps`` has both after each forward since the last :meth:`mark`, a list of rows each.
    """

    def __init__(self, layers: Sequence[RaggedLayer], limits: Sequence[Limit | None]):
        self.layers, self.limits = list(layers), list(limits)
        self.heads = sum(layer.positions.shape[1] for layer in layers)
        self._bounded = [row for row, limit in enumerate(limits) if limit is not None]
        self._groups: dict[Limit, list[int]] = {}
        for row in self._bounded:
            self._groups.setdefault(limits[row], []).append(row)
        self._observed = max(limit.window for limit in self._groups)
        self._queries: list[torch.Tensor | None] = [None] * len(self.layers)
        self.evictions, self.peaks = [0] * len(limits), [0] * len(limits)
        self.steps: list[tuple[list[int], list[int]]] = []
        for number, layer in enumerate(self.layers):
            layer.watch = self._watcher(number)
        self.mark()

    def _watcher(self, number: int) -> Callable[[torch.Tensor], None]:
        def watch(query: torch.Tensor) -> None:
            own, before = query[self._bounded, :, -self._observed :], self._queries[number]
            seen = own if before is None else torch.cat([before, own], 2)[:, :, -self._observed :]
            self._queries[number] = seen

        return watch

    def pieces(self, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
        """``tokens`` ``[rows, n]`` in pieces that are to be fed one after the other; the limits are enforced after each
        of them, before the next is asked for. No row overflows before the last token of a piece."""
        while tokens.shape[1]:
            held = self._held()
            room = min(self.limits[row].budget - -(-held[row] // self.heads) for row in self._bounded)
            yield tokens[:, : room + 1]
            self.enforce()
            tokens = tokens[:, room + 1 :]

    def enforce(self) -> None:
        """After a forward: evict from every row that is beyond its budget, and note what all rows hold."""
        held = self._held()
        for limit, rows in self._groups.items():
            while over := [row for row in rows if held[row] > limit.budget * self.heads]:
                self._evict(limit, over)
                for row in over:
                    self.evictions[row] += 1
                before, held = held, self._held()
                if any(held[row] == before[row] for row in over):
                    raise InputError(
                        "nothing was evicted from a cache beyond its budget: the importance that the bounding method "
                        "gives is not finite; let it return a number for every entry."
                    )
        self.peaks = [max(pair) for pair in zip(self.peaks, held, strict=True)]
        self.steps.append((list(self.evictions), list(self.peaks)))

    def _held(self) -> list[int]:
        return sum(layer.held().sum((1, 2)) for layer in self.layers).tolist()

    def _evict(self, limit: Limit, rows: list[int]) -> None:
        at = torch.tensor(rows, device=self.layers[0].device)
        ring = [self._bounded.index(row) for row in rows]
        for queries, layer in zip(self._queries, self.layers, strict=True):
            order, filled = packing(layer.held()[at])
            keys = layer.keys[at].gather(2, order[..., None].expand(*order.shape, layer.keys.shape[-1]))
            positions = torch.where(filled, layer.positions[at].gather(2, order), EMPTY)
            newest = layer.newest[at]
            evictable = filled & (positions <= newest - limit.window)
            asked = newest - torch.arange(limit.window - 1, -1, -1, device=at.device)
            visible = filled[:, :, None] & (positions[:, :, None] <= asked[..., None])
            scores = limit.importance(queries[ring, :, -limit.window :], keys, visible, evictable)
            gone = least(scores, evictable, limit.share)
            layer.drop(at, torch.zeros_like(layer.held()[at]).scatter_(2, order, gone))

    def mark(self) -> None:
        """Remember the present state; nothing that is stored is changed in place."""
        self._marked = list(self._queries), list(self.evictions), list(self.peaks)
        self.steps = []

    def rewind(self) -> None:
        """Return to what was marked."""
        queries, evictions, peaks = self._marked
        self._queries, self.evictions, self.peaks, self.steps = list(queries), list(evictions), list(peaks), []

    def after(self, forwards: int) -> tuple[list[int], list[int]]:
        """Evictions and peaks of the rows as they were so many forwards after :meth:`mark`."""
        return self.steps[forwards - 1] if forwards else self._marked[1:]

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, Bounds | None]], layers: Sequence[RaggedLayer]) -> Bounds | None:
        """The bounds of a cache that holds the rows of several: of each its number of rows and its bounds. None where
        none of them has any."""
        own = [bounds for _, bounds in parts if bounds is not None]
        if not own:
            return None
        limits = [limit for rows, bounds in parts for limit in (bounds.limits if bounds else [None] * rows)]
        joined = cls(layers, limits)
        joined.evictions = [n for rows, bounds in parts for n in (bounds.evictions if bounds else [0] * rows)]
        joined.peaks = [n for rows, bounds in parts for n in (bounds.peaks if bounds else [0] * rows)]
        most = max(queries.shape[2] for bounds in own for queries in bounds._queries)
        joined._queries = [
            torch.cat([torch.nn.functional.pad(q, (0, 0, most - q.shape[2], 0)) for q in same])
            for same in zip(*(bounds._queries for bounds in own), strict=True)
        ]
        joined.mark()
        return joined


def least(scores: torch.Tensor, evictable: torch.Tensor, share: float) -> torch.Tensor:
    """The ``share`` of each head's evictable entries with the lowest scores, rounded up; of equal ones the older.

    scores and evictable ``[rows, kv_heads, entries]``, entries in their order; returns bool of that shape.
    """
    counts = (evictable.sum(-1, keepdim=True).double() * share - 1e-9).ceil()
    order = scores.masked_fill(~evictable, float("inf")).argsort(dim=-1, stable=True)
    return (order.argsort(dim=-1) < counts) & evictable
