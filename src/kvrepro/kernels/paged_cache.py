"""The paged cache that every kernel of decoding works on: one pool of pages, one page table per KV head (WG-KV §4.1).

A *row* is the cache of one KV head of one batch row in one layer. Its logical slots are first the local region, a ring
of ``window`` slots in which position p lies at slot p mod window, and then the global region, which grows by pages of
16 tokens. Both regions lie in the same pool, anywhere; the row's page table maps logical pages to physical ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from kvrepro.errors import InputError
from kvrepro.kernels.common import check_head_width

PAGE = 16  #: tokens per page
_BLOCK = 64  # tokens that one program of the write kernel moves


class PoolExhausted(InputError):
    """The pool has too few free pages, or a page table too few entries; nothing has been overwritten."""


def ring_pages(window: int) -> int:
    """Pages of the local region of one row."""
    return -(-window // PAGE)


@dataclass(frozen=True)
class PagedRows:
    """Pages, tables and counters of rows: ``[layers, batch, kv_heads]``, or ``[batch, kv_heads]`` of one layer.

    pool ``[pages, 2, 16, head_dim]``: a page holds the keys and then the values of 16 slots; shared by all rows.
    tables int32 ``[*rows, table_pages]``: local pages first; an entry beyond the pages held means nothing.
    lengths, seen int32 ``[*rows]``: entries of the global region, and tokens that passed.
    admitted uint8 ``[*rows, window]``: whether the entry of a ring slot is to be promoted when it leaves the window.
    free_pages int32 ``[pages]``, of which the first ``free_count`` (int32 ``[1]``) are free, the last one next.
    exhausted int32 ``[1]``: set by a kernel that found no page; that row then kept what it had.
    """

    pool: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    seen: torch.Tensor
    admitted: torch.Tensor
    free_pages: torch.Tensor
    free_count: torch.Tensor
    exhausted: torch.Tensor

    @property
    def window(self) -> int:
        """Slots of the ring."""
        return self.admitted.shape[-1]

    @property
    def head_dim(self) -> int:
        """Width of a key."""
        return self.pool.shape[-1]

    @property
    def ring_slots(self) -> int:
        """Logical slots before the global region: the ring, rounded up to whole pages."""
        return ring_pages(self.window) * PAGE

    def layer(self, index: int) -> PagedRows:
        """The rows of one layer, as views."""
        per_row = {name: getattr(self, name)[index] for name in ("tables", "lengths", "seen", "admitted")}
        return replace(self, **per_row)


def allocate(
    rows: tuple[int, ...],
    head_dim: int,
    window: int,
    pages: int,
    table_pages: int,
    dtype: torch.dtype,
    device: str | torch.device,
    order: torch.Tensor | None = None,
) -> PagedRows:
    """An empty cache of ``pages`` pages with the local pages of all rows mapped.

    table_pages: the longest global region in pages. order: int ``[pages]``, the order in which pages are handed out
    (ascending when None). Raises PoolExhausted when the pool does not even hold the local regions, InputError when the
    window or the head width does not fit the kernels.
    """
    if window < 1:
        raise InputError(f"window {window} is too small; the local region needs at least one slot.")
    check_head_width(head_dim)
    count = 1
    for size in rows:
        count *= size
    local = ring_pages(window)
    if count * local > pages:
        raise PoolExhausted(
            f"A pool of {pages} pages is smaller than the local regions ({count} rows x {local} pages); make it larger."
        )
    order = torch.arange(pages, device=device) if order is None else order.to(device)
    tables = torch.zeros(count, local + table_pages, dtype=torch.int32, device=device)
    tables[:, :local] = order[: count * local].view(count, local)
    free = torch.zeros(pages, dtype=torch.int32, device=device)
    free[: pages - count * local] = order[count * local :].flip(0).int()

    def counters(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return PagedRows(
        pool=torch.empty(pages, 2, PAGE, head_dim, dtype=dtype, device=device),
        tables=tables.view(*rows, -1),
        lengths=counters(*rows),
        seen=counters(*rows),
        admitted=counters(*rows, window, dtype=torch.uint8),
        free_pages=free,
        free_count=torch.full((1,), pages - count * local, dtype=torch.int32, device=device),
        exhausted=counters(1),
    )


def pages_wanted(cache: PagedRows, entries: torch.Tensor | int) -> torch.Tensor:
    """Pages that each row lacks for ``entries`` (``[*rows]`` or one number) more global entries: int32 ``[*rows]``."""
    held = (cache.lengths + PAGE - 1) // PAGE
    return (cache.lengths + entries + PAGE - 1) // PAGE - held


def check_room(cache: PagedRows, entries: torch.Tensor | int) -> tuple[torch.Tensor, int, int]:
    """Raise PoolExhausted unless ``entries`` more global entries per row fit; one host synchronisation.

    Returns the pages that each row lacks ``[*rows]``, the free pages, and the longest lack of a row. With ``entries``
    the number of coming decode steps this is the reservation that makes those steps safe.
    """
    wanted = pages_wanted(cache, entries)
    longest = (cache.lengths + entries).max()
    figures = torch.stack([wanted.sum(), cache.free_count[0].long(), wanted.max().long(), longest.long()])
    total, free, most, slots = figures.tolist()
    if total > free:
        raise PoolExhausted(
            f"The pool has {free} free pages of {PAGE} tokens and {total} are wanted; enlarge the pool or admit less."
        )
    room = (cache.tables.shape[-1] - ring_pages(cache.window)) * PAGE
    if slots > room:
        raise PoolExhausted(
            f"A page table holds {room} global entries and {slots} are wanted; lengthen the tables or admit less."
        )
    return wanted, free, most


@triton.jit
def _map_pages_kernel(
    TABLES, LENGTHS, WANTED, BEFORE, FREE, free, table_pages, local, PAGE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    new = at < tl.load(WANTED + row)
    held = local + (tl.load(LENGTHS + row) + PAGE - 1) // PAGE
    page = tl.load(FREE + free - 1 - tl.load(BEFORE + row) - at, mask=new)
    tl.store(TABLES + row.to(tl.int64) * table_pages + held + at, page, mask=new)


@triton.jit
def _write_kernel(
    POOL, TABLES, SLOTS, KEYS, VALUES, heads, tokens, table_pages, batch_k, head_k, token_k, batch_v, head_v, token_v,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(SLOTS + row * tokens + token, mask=token < tokens, other=-1)
    kept = slot >= 0
    page = tl.load(TABLES + row * table_pages + slot // PAGE, mask=kept, other=0).to(tl.int64)
    d = tl.arange(0, D)[None, :]
    to = POOL + (page * 2 * PAGE + slot % PAGE)[:, None] * D + d
    token = token.to(tl.int64)[:, None]
    batch, head = row // heads, row % heads
    keys = tl.load(KEYS + batch * batch_k + head * head_k + token * token_k + d, mask=kept[:, None])
    tl.store(to, keys, mask=kept[:, None])
    values = tl.load(VALUES + batch * batch_v + head * head_v + token * token_v + d, mask=kept[:, None])
    tl.store(to + PAGE * D, values, mask=kept[:, None])


def _map_pages(cache: PagedRows, wanted: torch.Tensor, free: int, most: int) -> None:
    """Take ``wanted`` pages per row off the free list and append them to the tables."""
    if not most:
        return
    before = (wanted.flatten().cumsum(0) - wanted.flatten()).int()
    grid = (wanted.numel(), triton.cdiv(most, 256))
    _map_pages_kernel[grid](
        cache.tables, cache.lengths, wanted.contiguous(), before, cache.free_pages, free, cache.tables.shape[-1],
        ring_pages(cache.window), PAGE=PAGE, BLOCK=256,
    )  # fmt: skip
    cache.free_count.sub_(wanted.sum().int())


def _write(cache: PagedRows, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write keys, values ``[batch, kv_heads, n, head_dim]`` to logical slots ``[batch, kv_heads, n]``; not to -1."""
    batch, heads, tokens = slots.shape
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        keys, values = keys.contiguous(), values.contiguous()
    _write_kernel[(batch * heads, triton.cdiv(tokens, _BLOCK))](
        cache.pool, cache.tables, slots.contiguous(), keys, values, heads, tokens, cache.tables.shape[-1],
        *keys.stride()[:3], *values.stride()[:3], D=cache.head_dim, PAGE=PAGE, BLOCK=_BLOCK,
    )  # fmt: skip


def gather_slots(cache: PagedRows, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[*rows, n, head_dim]`` of the logical slots ``[*rows, n]``."""
    pages = cache.tables.gather(-1, (slots // PAGE).long()).long()
    found = cache.pool[pages, :, (slots % PAGE).long()]
    return found[..., 0, :], found[..., 1, :]


def local_positions(cache: PagedRows) -> torch.Tensor:
    """Positions of the last ``window`` tokens, oldest first; negative where fewer have passed: ``[*rows, window]``."""
    steps = torch.arange(cache.window, device=cache.seen.device, dtype=torch.int32)
    return cache.seen[..., None] - cache.window + steps


@dataclass(frozen=True)
class _Destinations:
    """Where a chunk goes: logical slots of what leaves the ring and of the new tokens, -1 for what is dropped."""

    leaving: torch.Tensor  #: [batch, kv_heads, window]
    arriving: torch.Tensor  #: [batch, kv_heads, n]
    promoted: torch.Tensor  #: global entries gained, [batch, kv_heads]


def _destinations(cache: PagedRows, admitted: torch.Tensor) -> _Destinations:
    n, window = admitted.shape[-1], cache.window
    old = local_positions(cache)
    flags = cache.admitted.gather(-1, old.remainder(window).long()).bool()
    leaves = flags & (old >= 0) & (torch.arange(window, device=old.device) < n)
    token = torch.arange(n, device=old.device, dtype=torch.int32)
    stays_local = token >= n - window
    chosen = torch.cat([leaves, admitted & ~stays_local], -1)
    rank = chosen.cumsum(-1, dtype=torch.int32)
    first = cache.ring_slots + cache.lengths[..., None] - 1
    slots = torch.where(chosen, first + rank, -1)
    ring = (cache.seen[..., None] + token).remainder(window)
    return _Destinations(slots[..., :window], torch.where(stays_local, ring, slots[..., window:]), rank[..., -1])


def prefill(cache: PagedRows, keys: torch.Tensor, values: torch.Tensor, admitted: torch.Tensor) -> None:
    """Append a chunk to one layer (§4.2, initial cache population): a whole context or the next part of one.

    keys, values ``[batch, kv_heads, n, head_dim]`` after RoPE; admitted bool ``[batch, kv_heads, n]``. The last
    ``window`` tokens go to the ring; what is older, from the ring or from the chunk, goes to the global region where it
    was admitted. Raises PoolExhausted before anything is written. One host synchronisation.
    """
    if not keys.shape[2]:
        return
    to = _destinations(cache, admitted)
    wanted, free, most = check_room(cache, to.promoted)
    _map_pages(cache, wanted, free, most)
    _write(cache, to.leaving, *gather_slots(cache, local_positions(cache).remainder(cache.window)))
    _write(cache, to.arriving, keys, values)
    _count(cache, to, admitted)


def _count(cache: PagedRows, to: _Destinations, admitted: torch.Tensor) -> None:
    last = min(admitted.shape[-1], cache.window)
    cache.admitted.scatter_(-1, to.arriving[..., -last:].long(), admitted[..., -last:].to(torch.uint8))
    cache.lengths.add_(to.promoted)
    cache.seen.add_(admitted.shape[-1])


def prefill_reference(cache: PagedRows, keys: torch.Tensor, values: torch.Tensor, admitted: torch.Tensor) -> None:
    """:func:`prefill` one token at a time, as §4.1 describes it."""
    total = take_pages_reference(cache, _destinations(cache, admitted).promoted)
    for batch in range(keys.shape[0]):
        for head in range(keys.shape[1]):
            row = (batch, head)
            for key, value, flag in zip(keys[row], values[row], admitted[row], strict=True):
                slot = int(cache.seen[row]) % cache.window
                if cache.seen[row] >= cache.window and cache.admitted[row][slot]:
                    place(cache, row, cache.ring_slots + int(cache.lengths[row]))[:] = place(cache, row, slot)
                    cache.lengths[row] += 1
                place(cache, row, slot)[:] = torch.stack([key, value])
                cache.admitted[row][slot] = flag
                cache.seen[row] += 1
    cache.free_count.sub_(total)


def take_pages_reference(cache: PagedRows, entries: torch.Tensor) -> int:
    """Map pages for ``entries`` ``[*rows]`` more global entries row by row; returns how many the free list lost."""
    wanted, free, _ = check_room(cache, entries)
    for row in torch.cartesian_prod(*(torch.arange(n) for n in wanted.shape)).tolist():
        row = tuple(row)
        held = ring_pages(cache.window) + -(-int(cache.lengths[row]) // PAGE)
        for _ in range(int(wanted[row])):
            free -= 1
            cache.tables[row][held] = cache.free_pages[free]
            held += 1
    return int(wanted.sum())


def place(cache: PagedRows, row: tuple[int, ...], slot: int) -> torch.Tensor:
    """The key and value in one logical slot of a row, a view: ``[2, head_dim]``."""
    return cache.pool[int(cache.tables[row][slot // PAGE]), :, slot % PAGE]
