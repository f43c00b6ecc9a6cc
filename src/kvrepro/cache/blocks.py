"""The index of a compacted sparse-attention cache: what a row holds, regrouped into blocks (GateSight Appendix H).

A block is that many entries of a row in their order, whatever lay between them in the context. Its index key is pooled
from their raw keys and rotated to the position of its first entry, so the model's own scan works on what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from kvrepro.models.sparse import Pool


class Blocks:
    """Index keys of complete blocks, and the raw keys of each row's last, incomplete one.

    ``keys`` ``[rows, blocks, head_dim]``, beyond the complete ones without meaning; ``tail`` ``[rows, block,
    head_dim]``; ``cos``, ``sin`` ``[rows, rotary_dim]`` of the tail's first entry; ``count`` ``[rows]`` entries. All
    that :meth:`append` changes are tensors that stay where they are, once there is room.
    """

    def __init__(self, keys, tail, cos, sin, count):
        self.keys, self.tail, self.cos, self.sin, self.count = keys, tail, cos, sin, count
        self.mark()

    @property
    def block(self) -> int:
        """Entries of a block."""
        return self.tail.shape[1]

    @classmethod
    def of(cls, raw, count, cos, sin, pool: Pool, block: int) -> Blocks:
        """The index of rows whose first ``count`` ``[rows]`` slots hold entries: raw keys ``[rows, slots, head_dim]``,
        rotations of every ``block``-th slot ``[rows, ceil(slots / block), rotary_dim]``."""
        groups = pad(raw, (0, 0, 0, -raw.shape[1] % block)).unflatten(1, (-1, block))
        last = (count // block).clamp(max=groups.shape[1] - 1)
        rows = torch.arange(len(raw), device=raw.device)
        return cls(pool(groups, cos, sin), groups[rows, last], cos[rows, last], sin[rows, last], count.clone())

    def append(self, raw, cos, sin, pool: Pool, used: int) -> None:
        """Add entries ``[rows, t, head_dim]`` with their rotations ``[rows or 1, t, rotary_dim]`` after the last of
        each row, none of which holds more than ``used``."""
        t, block, phase = raw.shape[1], self.block, self.count % self.block
        self.reserve(used + t)
        touched = torch.arange((block - 1 + t) // block + 1, device=raw.device)
        entries = pad(self.tail, (0, 0, 0, (len(touched) - 1) * block))
        places = phase[:, None] + torch.arange(t, device=raw.device)
        entries.scatter_(1, _wide(places, raw), raw)
        groups = entries.unflatten(1, (-1, block))
        first = touched * block - phase[:, None]  # of each block among the new entries; before them in the tail
        turns = [
            torch.where(
                (first < 0)[..., None],
                old[:, None],
                new.expand(len(raw), -1, -1).gather(1, _wide(first.clamp(0, t - 1), new)),
            )
            for old, new in ((self.cos, cos), (self.sin, sin))
        ]
        places = (self.count // block)[:, None] + touched
        self.keys.scatter_(1, _wide(places, self.keys), pool(groups, *turns))
        last, rows = (phase + t) // block, torch.arange(len(raw), device=raw.device)
        self.tail.copy_(groups[rows, last])
        self.cos.copy_(turns[0][rows, last])
        self.sin.copy_(turns[1][rows, last])
        self.count.add_(t)

    def reserve(self, entries: int) -> None:
        """Have room for the keys of that many entries in every row."""
        self.keys = pad(self.keys, (0, 0, 0, max(0, entries // self.block + 2 - self.keys.shape[1])))

    def bytes(self) -> torch.Tensor:
        """Bytes of what each row's entries need: ``[rows]``."""
        held = self.count // self.block + self.count % self.block
        return held * self.keys.shape[-1] * self.keys.element_size()

    def mark(self) -> None:
        """Remember the present content; keys of blocks that are complete never change."""
        self._marked = [x.clone() for x in (self.tail, self.cos, self.sin, self.count)]

    def rewind(self) -> None:
        """Return to what was marked."""
        for now, then in zip((self.tail, self.cos, self.sin, self.count), self._marked, strict=True):
            now.copy_(then)


def joined(parts: Sequence[Blocks], entries: int) -> Blocks:
    """The rows of several indexes, copied, with room for ``entries`` in each."""
    for part in parts:
        part.reserve(entries)
    blocks = min(part.keys.shape[1] for part in parts)
    fields = ("tail", "cos", "sin", "count")
    keys = torch.cat([part.keys[:, :blocks] for part in parts])
    return Blocks(keys, *(torch.cat([getattr(part, name) for part in parts]) for name in fields))


def _wide(places: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Places ``[rows, k]`` for gathering or scattering vectors as wide as ``like``'s."""
    return places[..., None].expand(-1, -1, like.shape[-1])
