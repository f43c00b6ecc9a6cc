"""What ragged per-head caches cost under three ways of allocating them (WG-KV Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.kernels.paged_cache import PAGE, ring_pages

_TABLE_ENTRY = 4  # bytes of a page number


@dataclass(frozen=True)
class Footprint:
    """Bytes of keys and values of all rows; ``entries`` is the floor, what the entries themselves take."""

    entries: int
    paged: int  #: whole pages, and a page table as long as the row's pages
    preallocated: int  #: a buffer for the whole context per row
    reallocated: int  #: contiguous buffers that grew by a factor whenever they were full
    reallocated_peak: int  #: the same while the longest row moves: its old and its new buffer exist together
    reallocated_copied: int  #: bytes moved from buffer to buffer until all rows had their lengths

    def waste(self, kind: str) -> float:
        """Share of the bytes of one way that hold no entry."""
        return 1 - self.entries / getattr(self, kind)


def footprint(
    global_entries: torch.Tensor, tokens: int, window: int, head_dim: int, element: int, growth: float = 2.0
) -> Footprint:
    """Bytes for rows with ``global_entries`` (int, any shape) beyond a local region of ``window`` slots.

    tokens: the context, which a preallocated buffer must hold; element: bytes of a number; growth: factor by which a
    reallocated buffer grows, from one page on. The local region has its final size from the start in all three.
    """
    lengths = global_entries.flatten().long().cpu()
    rows, entry = len(lengths), 2 * head_dim * element
    local = min(window, tokens)
    pages = -(-lengths // PAGE) + ring_pages(window)
    capacity = torch.where(lengths > 0, PAGE, 0)
    copied = torch.zeros_like(lengths)
    previous = torch.zeros_like(lengths)
    while bool((full := capacity < lengths).any()):
        previous = torch.where(full, capacity, previous)
        copied += torch.where(full, capacity, 0)
        capacity = torch.where(full, (capacity * growth).ceil().long(), capacity)
    held = int(capacity.sum()) + rows * local
    return Footprint(
        entries=(int(lengths.sum()) + rows * local) * entry,
        paged=int(pages.sum()) * (PAGE * entry + _TABLE_ENTRY),
        preallocated=rows * max(tokens, local) * entry,
        reallocated=held * entry,
        reallocated_peak=(held + int(previous.max())) * entry,
        reallocated_copied=int(copied.sum()) * entry,
    )
