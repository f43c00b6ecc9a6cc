"""Lazy promotion (WG-KV §4.3): one kernel moves what leaves the window and writes the new entry of every row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrepro.kernels.paged_cache import PAGE, PagedRows, place, ring_pages


@triton.jit
def _step_kernel(
    POOL, TABLES, LENGTHS, SEEN, ADMITTED, FREE, FREE_COUNT, EXHAUSTED, KEYS, VALUES, NEW_ADMITTED,
    table_pages, window, local, step_k, step_v, D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    table = TABLES + row * table_pages
    d = tl.arange(0, D)
    seen = tl.load(SEEN + row)
    slot = seen % window
    flag = ADMITTED + row * window + slot
    ring = POOL + (tl.load(table + slot // PAGE).to(tl.int64) * 2 * PAGE + slot % PAGE) * D + d
    room = 1
    if seen >= window and tl.load(flag) != 0:
        length = tl.load(LENGTHS + row)
        page = local + length // PAGE
        if length % PAGE == 0:
            left = 0
            if page < table_pages:
                left = tl.atomic_add(FREE_COUNT, -1)
                if left <= 0:
                    tl.atomic_add(FREE_COUNT, 1)
            if left > 0:
                tl.store(table + page, tl.load(FREE + left - 1))
            else:
                tl.store(EXHAUSTED, 1)
                room = 0
        if room != 0:
            tl.debug_barrier()  # the table entry is read back by every thread
            to = POOL + (tl.load(table + page).to(tl.int64) * 2 * PAGE + length % PAGE) * D + d
            tl.store(to, tl.load(ring))
            tl.store(to + PAGE * D, tl.load(ring + PAGE * D))
            tl.store(LENGTHS + row, length + 1)
    if room != 0:
        tl.debug_barrier()  # the victim has been read before it is overwritten
        tl.store(ring, tl.load(KEYS + row * step_k + d))
        tl.store(ring + PAGE * D, tl.load(VALUES + row * step_v + d))
        tl.store(flag, tl.load(NEW_ADMITTED + row))
        tl.store(SEEN + row, seen + 1)


def promote_and_append(cache: PagedRows, keys: torch.Tensor, values: torch.Tensor, admitted: torch.Tensor) -> None:
    """One decode step of every row: the oldest entry of a full ring is promoted if it was admitted, else dropped, and
    the new entry takes its slot.

    keys, values ``[*rows, head_dim]`` after RoPE; admitted bool ``[*rows]``, the decision on the new entry. ``cache``
    may be a whole model or one layer. No host synchronisation; fit for a CUDA graph. A row that finds no free page sets
    ``cache.exhausted`` and stays as it was; :func:`kvrepro.kernels.paged_cache.check_room` beforehand rules that out.
    """
    d = cache.head_dim
    keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (keys.reshape(-1, d), values.reshape(-1, d)))
    _step_kernel[(cache.seen.numel(),)](
        cache.pool, cache.tables, cache.lengths, cache.seen, cache.admitted, cache.free_pages, cache.free_count,
        cache.exhausted, keys, values, admitted.contiguous().view(torch.uint8),
        cache.tables.shape[-1], cache.window, ring_pages(cache.window), keys.stride(0), values.stride(0),
        D=d, PAGE=PAGE, num_warps=1,
    )  # fmt: skip


def promote_and_append_reference(
    cache: PagedRows, keys: torch.Tensor, values: torch.Tensor, admitted: torch.Tensor
) -> None:
    """:func:`promote_and_append` in torch, row after row."""
    local = ring_pages(cache.window)
    for row in torch.cartesian_prod(*(torch.arange(n) for n in cache.seen.shape)).tolist():
        row = tuple(row)
        slot = int(cache.seen[row]) % cache.window
        if cache.seen[row] >= cache.window and cache.admitted[row][slot]:
            length = int(cache.lengths[row])
            if length % PAGE == 0:
                if cache.free_count[0] == 0 or local + length // PAGE >= cache.tables.shape[-1]:
                    cache.exhausted[0] = 1
                    continue
                cache.free_count.sub_(1)
                cache.tables[row][local + length // PAGE] = cache.free_pages[int(cache.free_count)]
            place(cache, row, cache.ring_slots + length)[:] = place(cache, row, slot)
            cache.lengths[row] += 1
        place(cache, row, slot)[:] = torch.stack([keys[row], values[row]])
        cache.admitted[row][slot] = admitted[row]
        cache.seen[row] += 1
