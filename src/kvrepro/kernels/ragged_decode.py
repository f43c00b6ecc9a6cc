"""Decode attention over per-head page tables of any lengths (WG-KV §4.3, Appendix B).

Heads are folded into the batch: a row is one KV head of one batch row, and the queries of its GQA group share each read
of a page. The blocks of all rows form one list, of which every program takes an equal share, whatever the lengths; a
second kernel combines the parts of a row. The grid is fixed, so a CUDA graph stays valid while lengths change.

Programmatic dependent launch (``DecodePlan.early``) starts a kernel while the one before it ends. It is right since
both kernels wait before they read or write anything, and a wait lasts until the whole grid before has ended and its
memory is visible, wherever that grid let its dependents go. Unlike an ordinary launch, such a kernel waits for the grid
before it alone, and not for those before that one. But that one began after all of them had ended, if its launch was
ordinary, and otherwise does not end before they have, since its own programs wait. So no wait may be left out or come
later, not even behind a read of lengths, which were written two grids before the second kernel. Memory that the
allocator hands out again (parts, statistics, output) is no longer read by then. The kernel after these two is an
ordinary launch, which waits for all of them, or one of a library, which waits by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvrepro.errors import InputError
from kvrepro.kernels.common import INTERPRETED
from kvrepro.kernels.paged_cache import PAGE, PagedRows, gather_slots

_MIN_ROWS = 16  # rows of the smallest matrix product of the tensor cores


@dataclass(frozen=True)
class DecodePlan:
    """Compile-time choices: tokens per block, programs per multiprocessor, warps, and depth of the load pipeline. The
    defaults are the fastest of those that ``profiling.bench_decode`` compares, on one NVIDIA H200."""

    block: int = 64
    programs: int = 2
    warps: int = 4
    stages: int = 3
    chunk: int = 64  #: parts combined at a time
    early: bool = True  #: both kernels are launched before the one before them has ended, on GPUs that can


@triton.jit
def _shares(LENGTHS, rows, window, programs, ROWS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Blocks per row, ends of the rows in the list of all blocks, and the blocks that each program takes."""
    row = tl.arange(0, ROWS)
    slots = tl.load(LENGTHS + row, mask=row < rows, other=0) + (window + PAGE - 1) // PAGE * PAGE
    blocks = tl.where(row < rows, (slots + BLOCK - 1) // BLOCK, 0)
    return blocks, tl.cumsum(blocks, 0), (tl.sum(blocks, 0) + programs - 1) // programs


@triton.jit
def _split_kernel(
    Q, POOL, TABLES, LENGTHS, SEEN, PARTS, STATS, rows, table_pages, window, scale,
    ROWS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr, PADDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    if EARLY:  # first of all: see above
        gdc_wait()
        gdc_launch_dependents()
    program = tl.program_id(0)
    blocks, ends, share = _shares(LENGTHS, rows, window, tl.num_programs(0), ROWS, PAGE, BLOCK)
    index = tl.arange(0, ROWS)
    first = program * share
    last = tl.minimum(first + share, tl.max(ends, 0))
    row_from = tl.sum(tl.where(ends <= first, 1, 0), 0)
    row_to = tl.sum(tl.where((ends < last) & (index < rows), 1, 0), 0) + 1
    row_to = tl.where(first < last, row_to, row_from)
    g, d, n = tl.arange(0, PADDED), tl.arange(0, D), tl.arange(0, BLOCK)
    ring_slots = (window + PAGE - 1) // PAGE * PAGE
    for row in tl.range(row_from, row_to, num_stages=1):
        end, count = tl.sum(tl.where(index == row, ends, 0), 0), tl.sum(tl.where(index == row, blocks, 0), 0)
        low, high = tl.maximum(first - (end - count), 0), tl.minimum(last - (end - count), count)
        in_ring = tl.minimum(tl.load(SEEN + row), window)
        slots = ring_slots + tl.load(LENGTHS + row)
        table = TABLES + row * table_pages
        q = tl.load(Q + (row * GROUP + g)[:, None] * D + d[None, :], mask=(g < GROUP)[:, None], other=0.0)
        top = tl.full([PADDED], -1e30, tl.float32)
        total = tl.zeros([PADDED], tl.float32)
        acc = tl.zeros([PADDED, D], tl.float32)
        slot = low * BLOCK + n
        page = tl.load(table + slot // PAGE, mask=slot < slots, other=0)
        for _ in tl.range(low, high):
            at = POOL + ((page.to(tl.int64) * 2 * PAGE + slot % PAGE) * D)[:, None] + d[None, :]
            held = (slot < in_ring) | ((slot >= ring_slots) & (slot < slots))
            slot += BLOCK
            page = tl.load(table + slot // PAGE, mask=slot < slots, other=0)  # one block ahead of its pages
            k = tl.load(at)
            v = tl.load(at + PAGE * D, mask=held[:, None], other=0.0)  # 0 x what an unused slot holds may be NaN
            if UPCAST:
                k, v, q = k.to(tl.float32), v.to(tl.float32), q.to(tl.float32)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            s = tl.where(held[None, :], s, float("-inf"))
            new_top = tl.maximum(top, tl.max(s, 1))
            p = tl.math.exp2(s - new_top[:, None])
            fade = tl.math.exp2(top - new_top)
            total = total * fade + tl.sum(p, 1)
            acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
            top = new_top
        part = program + row  # along the list of blocks one of the two grows at each cut, so parts are distinct
        mine = g < GROUP
        tl.store(STATS + (part * 2) * GROUP + g, top, mask=mine)
        tl.store(STATS + (part * 2 + 1) * GROUP + g, total, mask=mine)
        tl.store(PARTS + (part * GROUP + g)[:, None] * D + d[None, :], acc, mask=mine[:, None])


@triton.jit
def _combine_kernel(
    PARTS, STATS, LENGTHS, OUT, rows, window, programs,
    ROWS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    if EARLY:  # first of all: see above
        gdc_wait()
    row, g = tl.program_id(0) // GROUP, tl.program_id(0) % GROUP
    blocks, ends, share = _shares(LENGTHS, rows, window, programs, ROWS, PAGE, BLOCK)
    index, d = tl.arange(0, ROWS), tl.arange(0, D)
    end, count = tl.sum(tl.where(index == row, ends, 0), 0), tl.sum(tl.where(index == row, blocks, 0), 0)
    part_from, part_to = row + (end - count) // share, row + (end - 1) // share + 1
    top, total = -1e30, 0.0
    acc = tl.zeros([D], tl.float32)
    for start in tl.range(part_from, part_to, CHUNK):
        part = start + tl.arange(0, CHUNK)
        mine = part < part_to
        stats = STATS + part * 2 * GROUP + g
        tops = tl.load(stats, mask=mine, other=-1e30, cache_modifier=".cg")
        totals = tl.load(stats + GROUP, mask=mine, other=0.0, cache_modifier=".cg")
        at = PARTS + ((part * GROUP + g) * D)[:, None] + d[None, :]
        parts = tl.load(at, mask=mine[:, None], other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(tops, 0))
        weight = tl.where(mine, tl.math.exp2(tops - new_top), 0.0)
        fade = tl.math.exp2(top - new_top)
        total = total * fade + tl.sum(weight * totals, 0)
        acc = acc * fade + tl.sum(weight[:, None] * parts, 0)
        top = new_top
    out = acc / tl.where(total > 0, total, 1.0)  # a row without entries attends to nothing
    tl.store(OUT + (row * GROUP + g) * D + d, out.to(OUT.dtype.element_ty))


def _programs(device: torch.device, plan: DecodePlan) -> int:
    if device.type != "cuda":
        return 4 * plan.programs
    return torch.cuda.get_device_properties(device).multi_processor_count * plan.programs


def _early(device: torch.device, plan: DecodePlan) -> bool:
    """``plan.early`` where the GPU can: programmatic dependent launch came with compute capability 9.0."""
    if not plan.early or INTERPRETED or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def ragged_decode_attention(
    q: torch.Tensor, cache: PagedRows, scale: float | None = None, plan: DecodePlan | None = None
) -> torch.Tensor:
    """Attention of one new token per batch row over all entries of one layer, local and global.

    q ``[batch, query_heads, head_dim]`` after RoPE; cache with rows ``[batch, kv_heads]``; scale head_dim ** -0.5 when
    None. The new token's own entry must already be in the cache. Returns ``[batch, query_heads, head_dim]``; a row that
    holds nothing gives 0. No host synchronisation; fit for a CUDA graph.
    """
    plan = plan or DecodePlan()
    batch, kv_heads = cache.lengths.shape
    group, rest = divmod(q.shape[1], kv_heads)
    if rest or q.shape[0] != batch:
        raise InputError(
            f"Queries {list(q.shape)} do not fit {batch} rows of {kv_heads} KV heads; give the heads of one layer."
        )
    rows, d = batch * kv_heads, cache.head_dim
    programs = _programs(q.device, plan)
    parts = torch.empty(programs + rows, group, d, dtype=torch.float32, device=q.device)
    stats = torch.empty(programs + rows, 2, group, dtype=torch.float32, device=q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    shape = {
        "ROWS": triton.next_power_of_2(rows), "GROUP": group, "D": d, "PAGE": PAGE, "BLOCK": plan.block,
        "EARLY": _early(q.device, plan),
    }  # fmt: skip
    _split_kernel[(programs,)](
        q.contiguous(), cache.pool, cache.tables, cache.lengths, cache.seen, parts, stats,
        rows, cache.tables.shape[-1], cache.window, (scale or d**-0.5) * math.log2(math.e), **shape,
        PADDED=max(_MIN_ROWS, triton.next_power_of_2(group)), UPCAST=INTERPRETED, num_warps=plan.warps,
        num_stages=plan.stages, launch_pdl=shape["EARLY"],
    )  # fmt: skip
    _combine_kernel[(rows * group,)](
        parts, stats, cache.lengths, out, rows, cache.window, programs, **shape, CHUNK=plan.chunk, num_warps=4,
        num_stages=1, launch_pdl=shape["EARLY"],
    )  # fmt: skip
    return out


def ragged_decode_attention_reference(
    q: torch.Tensor, cache: PagedRows, scale: float | None = None, plan: DecodePlan | None = None
) -> torch.Tensor:
    """:func:`ragged_decode_attention` in float64, row after row; ``plan`` changes nothing."""
    group = q.shape[1] // cache.lengths.shape[1]
    out = torch.zeros_like(q)
    for row in torch.cartesian_prod(*(torch.arange(n) for n in cache.lengths.shape)).tolist():
        batch, head = row
        in_ring = min(int(cache.seen[batch, head]), cache.window)
        slots = torch.cat([torch.arange(in_ring), cache.ring_slots + torch.arange(int(cache.lengths[batch, head]))])
        keys, values = gather_slots(cache.layer(batch).layer(head), slots.to(q.device))
        heads = slice(head * group, (head + 1) * group)
        scores = q[batch, heads].double() @ keys.double().T * (scale or cache.head_dim**-0.5)
        out[batch, heads] = (scores.softmax(-1) @ values.double()).to(q.dtype)
    return out
