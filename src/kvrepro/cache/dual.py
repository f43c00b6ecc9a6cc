"""The dual cache of a whole model in one paged pool (WG-KV §4): local rings, growing global regions, ragged decoding.

One pool serves all layers, because admission is as ragged across layers as across heads: pages that one layer does not
need are there for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from kvrepro.kernels import compaction, paged_cache, promotion, ragged_decode
from kvrepro.kernels.paged_cache import PAGE, PagedRows, ring_pages


def pages_for(entries: torch.Tensor, window: int) -> int:
    """Pages that rows with ``entries`` global entries each hold, local regions included."""
    return int((-(-entries // PAGE) + ring_pages(window)).sum())


@dataclass(frozen=True)
class DualCache:
    """Keys and values of ``layers x batch x kv_heads`` rows; the state lies in ``rows`` and keeps its addresses."""

    rows: PagedRows  #: [layers, batch, kv_heads]

    @classmethod
    def allocate(
        cls,
        *,
        layers: int,
        batch: int,
        kv_heads: int,
        head_dim: int,
        window: int,
        pages: int,
        tokens: int,
        dtype: torch.dtype,
        device: str | torch.device,
        page_order: torch.Tensor | None = None,
    ) -> DualCache:
        """An empty cache with a pool of ``pages`` pages of 16 tokens, of which the local regions take theirs at once.

        tokens: the longest context, which bounds a row's page table. page_order: int ``[pages]``, the order in which
        pages are handed out. Raises PoolExhausted when the pool is smaller than the local regions.
        """
        table = -(-tokens // PAGE)
        rows = (layers, batch, kv_heads)
        return cls(paged_cache.allocate(rows, head_dim, window, pages, table, dtype, device, page_order))

    @cached_property
    def layers(self) -> tuple[PagedRows, ...]:
        """The rows of each layer, as views that are made once, since making them costs an eager step much time."""
        return tuple(self.rows.layer(index) for index in range(self.rows.lengths.shape[0]))

    def prefill(self, layer: int, keys: torch.Tensor, values: torch.Tensor, admitted: torch.Tensor) -> None:
        """Append a context, or the next chunk of one, to a layer; one host synchronisation.

        keys, values ``[batch, kv_heads, n, head_dim]`` after RoPE; admitted bool ``[batch, kv_heads, n]`` (gate ≥ τ).
        Raises PoolExhausted before anything is written.
        """
        paged_cache.prefill(self.layers[layer], keys, values, admitted)

    def reserve(self, steps: int) -> None:
        """Raise PoolExhausted unless the pool and the tables bear ``steps`` decode steps that promote everything; one
        host synchronisation. After it, that many steps need no check."""
        paged_cache.check_room(self.rows, steps)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor, admitted: torch.Tensor) -> None:
        """Lazy promotion and the new entry of one layer: keys, values ``[batch, kv_heads, head_dim]``, admitted bool
        ``[batch, kv_heads]``. No host synchronisation."""
        promotion.promote_and_append(self.layers[layer], keys, values, admitted)

    def append_all(self, keys: torch.Tensor, values: torch.Tensor, admitted: torch.Tensor) -> None:
        """:meth:`append` for all layers in one kernel: keys, values ``[layers, batch, kv_heads, head_dim]``."""
        promotion.promote_and_append(self.rows, keys, values, admitted)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        scale: float | None = None,
        plan: ragged_decode.DecodePlan | None = None,
    ) -> torch.Tensor:
        """Decode attention of a layer whose new entry was appended: q and result ``[batch, query_heads, head_dim]``."""
        return ragged_decode.ragged_decode_attention(q, self.layers[layer], scale, plan)

    def compact(self, layer: int, kept: torch.Tensor) -> None:
        """Drop global entries of a layer (an eviction); kept bool ``[batch, kv_heads, slots]``. Frees pages."""
        compaction.compact(self.layers[layer], kept)

    def check(self) -> None:
        """Raise PoolExhausted if a step since the last check found no page; one host synchronisation. The rows it
        stopped kept what they had and did not take that step's entry."""
        if int(self.rows.exhausted):
            self.rows.exhausted.zero_()
            raise paged_cache.PoolExhausted(
                "A decode step found no free page; reserve the steps before they run, or make the pool larger."
            )

    def entries(self) -> torch.Tensor:
        """Entries held, local and global: ``[layers, batch, kv_heads]``."""
        return self.rows.lengths + self.rows.seen.clamp(max=self.rows.window)

    def contents(self, layer: int, batch: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[entries, head_dim]`` that a row holds, in the order in which they came."""
        row = self.layers[layer].layer(batch).layer(head)
        ring = paged_cache.local_positions(row)
        ring = ring[ring >= 0].remainder(row.window)
        region = row.ring_slots + torch.arange(int(row.lengths), device=ring.device)
        return paged_cache.gather_slots(row, torch.cat([region, ring]))

    def bytes_held(self) -> int:
        """Bytes of the pages that rows hold, and of the page tables; one host synchronisation."""
        pages = self.rows.pool.shape[0] - int(self.rows.free_count)
        page = self.rows.pool[0].numel() * self.rows.pool.element_size()
        return pages * page + self.rows.tables.numel() * self.rows.tables.element_size()
