"""A hard budget over all layers and heads of a cache, in prefill and decoding alike (WG-KV Appendix K).

After every token a row that holds more than its budget gives up entries of each head until it is within it. What comes
before the next overflow is plain attention over what is held, so tokens may be fed together up to there: the result is
that of feeding them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from kvrepro.cache.ragged import EMPTY, RaggedLayer, packing
from kvrepro.errors import InputError

SCRATCH = 2**30  #: bytes of float32 logits and weights of rows that are scored at once, about

#: ``importance(queries, keys, visible, evictable)``: see :class:`kvrepro.methods.bounding.base.Bounding`.
Importance = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Limit:
    """What a bounding method decides: entries a head on average over the model, the youngest tokens that stay and whose
    queries are observed, and the share of a head's other entries that goes on overflow. ``alike`` is the same in limits
    whose importance is the same function; None where that is not known."""

    budget: int
    window: int
    share: float
    importance: Importance
    alike: Hashable = None

    @property
    def evicts(self) -> Hashable:
        """The same in limits that differ in their budget only: their rows are evicted from together."""
        return self.window, self.share, self.alike or self.importance


class Bounds:
    """The limits of the rows of a cache, one a row, None where there is none. ``layers`` are its attention layers.

    ``evictions`` counts how often each row overflowed, ``peaks`` the most entries it held after a token, over all
    layers and heads. ``steps`` has both after each forward since the last :meth:`mark`, a list of rows each.

    A GPU is waited for once a forward, and once more where something was evicted. All layers are evicted from at once.
    """

    def __init__(self, layers: Sequence[RaggedLayer], limits: Sequence[Limit | None]):
        self.layers, self.limits = list(layers), list(limits)
        self.heads = sum(layer.positions.shape[1] for layer in layers)
        self._bounded = [row for row, limit in enumerate(limits) if limit is not None]
        self._groups: dict[Hashable, list[int]] = {}
        for row in self._bounded:
            self._groups.setdefault(limits[row].evicts, []).append(row)
        self._observed = max(limits[row].window for row in self._bounded)
        self._queries: list[torch.Tensor | None] = [None] * len(self.layers)
        device = self.layers[0].device
        self._watched = torch.tensor(self._bounded, device=device)
        self._turn: torch.Tensor | None = None  # of a joined cache: the place of the next query, which goes in circles
        self._count = torch.zeros(2, len(limits), dtype=torch.long, device=device)
        self.evictions, self.peaks = [0] * len(limits), [0] * len(limits)
        self.steps: list[tuple[list[int], list[int]]] = []
        for number, layer in enumerate(self.layers):
            layer.watch = self._watcher(number)
        self.mark()

    def _watcher(self, number: int) -> Callable[[torch.Tensor], None]:
        def watch(query: torch.Tensor) -> None:
            own, before = query.index_select(0, self._watched)[:, :, -self._observed :], self._queries[number]
            if self._turn is None:
                own = own if before is None else torch.cat([before, own], 2)[:, :, -self._observed :]
                self._queries[number] = own
                return
            before.index_copy_(2, self._turn, own)  # in place, so that a GPU can replay it
            if number == len(self.layers) - 1:
                self._turn.add_(1).remainder_(self._observed)

        return watch

    def pieces(self, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
        """``tokens`` ``[rows, n]`` in pieces that are to be fed one after the other; the limits are enforced after each
        of them, before the next is asked for. No row overflows before the last token of a piece."""
        self.look()
        held, _ = self._count.tolist()
        while tokens.shape[1]:
            room = min(self.limits[row].budget - -(-held[row] // self.heads) for row in self._bounded)
            yield tokens[:, : room + 1]
            self.look()
            held = self.enforce()
            tokens = tokens[:, room + 1 :]

    def look(self) -> None:
        """After a forward: count what every row holds. Nothing waits for the device and no address changes, so that a
        GPU can replay it with the forward."""
        entries = torch.stack([layer.entries() for layer in self.layers]).transpose(0, 1).flatten(1)
        self._count.copy_(torch.stack([entries.sum(1), entries.amax(1)]))

    def enforce(self) -> list[int]:
        """After :meth:`look`: evict from every row that is beyond its budget, and note what all rows hold, which is
        returned."""
        held, fullest = self._count.tolist()
        for rows in self._groups.values():
            while over := [row for row in rows if held[row] > self.limits[row].budget * self.heads]:
                self._evict(over, max(fullest[row] for row in over))
                for row in over:
                    self.evictions[row] += 1
                self.look()
                before, (held, fullest) = held, self._count.tolist()
                if any(held[row] == before[row] for row in over):
                    raise InputError(
                        "nothing was evicted from a cache beyond its budget: the importance that the bounding method "
                        "gives is not finite; let it return a number for every entry."
                    )
        self.peaks = [max(pair) for pair in zip(self.peaks, held, strict=True)]
        self.steps.append((list(self.evictions), list(self.peaks)))
        return held

    def _evict(self, rows: list[int], fullest: int) -> None:
        """Evict from rows whose limits differ in their budget only; none of their heads holds more than ``fullest``.
        The rows of all layers are one batch, layer after layer."""
        limit, many = self.limits[rows[0]], len(self.layers)
        at = torch.tensor(rows, device=self._count.device)
        own = torch.searchsorted(self._watched, at)
        held = self._stacked([layer.held() for layer in self.layers], at)
        order, filled = packing(held, fullest)
        keys, positions = (self._gathered(name, at, order) for name in ("keys", "positions"))
        positions = torch.where(filled, positions, EMPTY)
        newest = self.layers[0].newest[at].repeat(many, 1, 1)
        evictable = filled & (positions <= newest - limit.window)
        before = torch.arange(limit.window - 1, -1, -1, device=at.device)
        visible = filled[:, :, None] & (positions[:, :, None] <= (newest - before)[..., None])
        queries = torch.cat([seen.index_select(0, own) for seen in self._queries])
        latest = (0 if self._turn is None else self._turn) - 1 - before
        queries = queries.index_select(2, latest % queries.shape[2])
        parts = [x.split(self._scored(queries, fullest)) for x in (queries, keys, visible, evictable)]
        scores = torch.cat([limit.importance(*part) for part in zip(*parts, strict=True)])
        gone = torch.zeros_like(held).scatter_(2, order, least(scores, evictable, limit.share))
        for layer, out in zip(self.layers, gone.chunk(many), strict=True):
            layer.drop(at, out[..., : layer.positions.shape[2]])

    @staticmethod
    def _scored(queries: torch.Tensor, entries: int) -> int:
        """How many rows are scored at once, so that logits and weights of queries ``[rows, heads, window, head_dim]``
        over so many entries fit in SCRATCH."""
        return max(1, SCRATCH // (8 * queries.shape[1] * queries.shape[2] * max(1, entries)))

    @staticmethod
    def _stacked(parts: list[torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        """The rows ``at`` of a tensor ``[rows, kv_heads, slots]`` of each layer, as rows of one batch."""
        slots = max(part.shape[2] for part in parts)
        own = [part.index_select(0, at) for part in parts]
        return torch.cat([pad(x, (0, slots - x.shape[2])) if x.shape[2] < slots else x for x in own])

    def _gathered(self, name: str, at: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """What stands in the slots ``order`` ``[layers * rows, kv_heads, entries]`` of the rows ``at`` of every layer;
        free slots, which an answer may have many of, are not copied."""
        parts, heads = [], torch.arange(order.shape[1], device=at.device)[:, None]
        for layer, own in zip(self.layers, order.chunk(len(self.layers)), strict=True):
            stored = getattr(layer, name)  # a layer may have fewer slots than the widest, and those hold nothing
            parts.append(stored[at[:, None, None], heads, own.clamp(max=stored.shape[2] - 1)])
        return torch.cat(parts)

    def mark(self) -> None:
        """Remember the present state; nothing that is stored is changed in place, but for joined bounds, whose queries
        are not returned to."""
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
        joined._queries = [
            torch.cat([pad(q, (0, 0, joined._observed - q.shape[2], 0)) for q in same])
            for same in zip(*(bounds._queries for bounds in own), strict=True)
        ]
        joined._turn = torch.zeros(1, dtype=torch.long, device=layers[0].device)
        joined.mark()
        return joined


def least(scores: torch.Tensor, evictable: torch.Tensor, share: float) -> torch.Tensor:
    """The ``share`` of each head's evictable entries with the lowest scores, rounded up; of equal ones the older.

    scores and evictable ``[rows, kv_heads, entries]``, entries in their order; returns bool of that shape.
    """
    counts = (evictable.sum(-1, keepdim=True).double() * share - 1e-9).ceil()
    order = scores.masked_fill(~evictable, float("inf")).argsort(dim=-1, stable=True)
    return (order.argsort(dim=-1) < counts) & evictable
