"""Compaction: kept entries move to the front of their pages, and pages that became free return to the pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrepro.kernels.paged_cache import PAGE, PagedRows, place, ring_pages

_BLOCK = 64  # entries that a program moves at a time
_COLUMNS = 32  # elements of an entry that one program moves


@triton.jit
def _gather_kernel(
    POOL, TABLES, LENGTHS, KEPT, table_pages, slots, local,
    D: tl.constexpr, COLUMNS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    half, column = tl.program_id(1) // (D // COLUMNS), tl.program_id(1) % (D // COLUMNS)
    table = TABLES + row * table_pages + local
    base = POOL + half * PAGE * D + column * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    length = tl.load(LENGTHS + row)
    done = 0
    for start in tl.range(0, length, BLOCK, num_stages=1):
        entry = start + tl.arange(0, BLOCK)
        kept = tl.load(KEPT + row * slots + entry, mask=entry < length, other=0).to(tl.int32)
        to = done + tl.cumsum(kept, 0) - 1
        moved = (kept != 0) & (to != entry)
        page = tl.load(table + entry // PAGE, mask=moved, other=0).to(tl.int64)
        to_page = tl.load(table + to // PAGE, mask=moved, other=0).to(tl.int64)
        found = tl.load(base + (page * 2 * PAGE + entry % PAGE)[:, None] * D, mask=moved[:, None])
        tl.debug_barrier()  # all of the block is read before any of it is overwritten
        tl.store(base + (to_page * 2 * PAGE + to % PAGE)[:, None] * D, found, mask=moved[:, None])
        done += tl.sum(kept, 0)


@triton.jit
def _release_kernel(
    TABLES, LENGTHS, KEEPS, FREE, FREE_COUNT, table_pages, local, PAGE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    keeps = tl.load(KEEPS + row)
    held, stay = (tl.load(LENGTHS + row) + PAGE - 1) // PAGE, (keeps + PAGE - 1) // PAGE
    at = tl.atomic_add(FREE_COUNT, held - stay)
    for start in tl.range(stay, held, BLOCK, num_stages=1):
        page = start + tl.arange(0, BLOCK)
        free = page < held
        tl.store(FREE + at + page - stay, tl.load(TABLES + row * table_pages + local + page, mask=free), mask=free)
    tl.store(LENGTHS + row, keeps)


def compact(cache: PagedRows, kept: torch.Tensor) -> None:
    """Drop global entries: the kept ones stay in their order at the front, pages without entries become free.

    kept bool ``[*rows, slots]``, ``slots`` at least the longest global region; slots beyond a row's length count for
    nothing. The local region stays. ``cache`` may be a whole model or one layer. No host synchronisation.
    """
    kept = kept.contiguous()
    slots, d, local = kept.shape[-1], cache.head_dim, ring_pages(cache.window)
    columns = min(_COLUMNS, d)
    rows, table_pages = cache.lengths.numel(), cache.tables.shape[-1]
    keeps = (kept & (torch.arange(slots, device=kept.device) < cache.lengths[..., None])).sum(-1, dtype=torch.int32)
    _gather_kernel[(rows, 2 * d // columns)](
        cache.pool, cache.tables, cache.lengths, kept.view(torch.uint8), table_pages, slots, local,
        D=d, COLUMNS=columns, PAGE=PAGE, BLOCK=_BLOCK,
    )  # fmt: skip
    _release_kernel[(rows,)](
        cache.tables, cache.lengths, keeps, cache.free_pages, cache.free_count, table_pages, local, PAGE=PAGE, BLOCK=128
    )


def compact_reference(cache: PagedRows, kept: torch.Tensor) -> None:
    """:func:`compact` in torch, row after row."""
    local = ring_pages(cache.window)
    for row in torch.cartesian_prod(*(torch.arange(n) for n in cache.lengths.shape)).tolist():
        row = tuple(row)
        length = int(cache.lengths[row])
        entries = kept[row][:length].nonzero()[:, 0].tolist()
        for to, entry in enumerate(entries):
            place(cache, row, cache.ring_slots + to)[:] = place(cache, row, cache.ring_slots + entry)
        cache.lengths[row] = len(entries)
        stay, held = -(-len(entries) // PAGE), -(-length // PAGE)
        at = int(cache.free_count)
        cache.free_pages[at : at + held - stay] = cache.tables[row][local + stay : local + held]
        cache.free_count.add_(held - stay)
