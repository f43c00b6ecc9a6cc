"""Decode attention over per-head page tables of any lengths (WG-KV §4.3, Appendix B).

Heads are folded into the batch: a row is one KV head of one batch row, and the queries of its GQA group share each read
of a page. The blocks of all rows form one list, of which every program takes an equal share, whatever the lengths; a
second kernel combines the parts of a row. The grid is fixed, so a CUDA graph stays valid while lengths change.

Programmatic dependent launch (``DecodePlan.early``) starts a kernel while the one before it runs. It is right since a
wait lasts until the whole grid before has ended and its memory is visible, wherever that grid let its dependents go:

* The second kernel reads parts and writes its output after its wait. Before it, it reads lengths alone: no program of
  the first kernel lets it go before what wrote them has ended, and nothing writes them until both kernels have.
* With ``early=2`` the first kernel waits before it reads or writes anything. Unlike an ordinary launch, it waits for
  the kernel before it alone, and not for those before that one. That one did, as an ordinary launch, which starts
  after all of them, or as a second kernel, all of whose programs wait.
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
_TRIES = 32  # shares from the smallest one on, of which the first that leaves no row to two kinds of programs is taken


@dataclass(frozen=True)
class DecodePlan:
    """Compile-time choices: tokens per block, programs per multiprocessor, warps, and depth of the load pipeline. The
    defaults are the fastest of those that ``profiling.bench_decode`` compares, on one NVIDIA H200."""

    block: int = 64
    programs: int = 2
    warps: int = 4
    stages: int = 3
    chunk: int = 32  #: parts combined at a time
    early: int = 0  #: launched before the kernel before has ended, on GPUs that can: 1 the second kernel, 2 both
    whole: bool = False  #: no program works on two rows, where there are many programs a row


@triton.jit
def _shares(LENGTHS, rows, window, programs, ROWS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
            WHOLE: tl.constexpr, TRIES: tl.constexpr):  # fmt: skip
    """Blocks per row, begins and ends of the rows in the list of all blocks, and the blocks that each program takes.

    With WHOLE a row fills its last share up with blocks that do not exist, so that the next one begins a share.
    """
    row = tl.arange(0, ROWS)
    slots = tl.load(LENGTHS + row, mask=row < rows, other=0) + (window + PAGE - 1) // PAGE * PAGE
    blocks = tl.where(row < rows, (slots + BLOCK - 1) // BLOCK, 0)
    total = tl.sum(blocks, 0)
    share = (total + programs - 1) // programs
    room = blocks
    if WHOLE:
        tries = share + tl.arange(0, TRIES)
        used = tl.sum((blocks[None, :] + tries[:, None] - 1) // tries[:, None], 1)
        enough = (total + programs - rows - 1) // (programs - rows)  # if each row wastes a share
        share = tl.min(tl.where(used <= programs, tries, enough), 0)
        room = (blocks + share - 1) // share * share
    ends = tl.cumsum(room, 0)
    return blocks, ends - room, ends, share


@triton.jit
def _split_kernel(
    Q, POOL, TABLES, LENGTHS, SEEN, PARTS, STATS, rows, table_pages, window, scale,
    ROWS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr, TRIES: tl.constexpr, EARLY: tl.constexpr, PADDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    if EARLY == 2:
        gdc_wait()
    if EARLY:
        gdc_launch_dependents()  # after the wait: see above
    program = tl.program_id(0)
    blocks, begins, ends, share = _shares(LENGTHS, rows, window, tl.num_programs(0), ROWS, PAGE, BLOCK, WHOLE, TRIES)
    index = tl.arange(0, ROWS)
    first = program * share
    last = tl.minimum(first + share, tl.max(ends, 0))
    row_from = tl.sum(tl.where(ends <= first, 1, 0), 0)
    row_to = tl.sum(tl.where((ends < last) & (index < rows), 1, 0), 0) + 1
    row_to = tl.where(first < last, row_to, row_from)
    g, d, n = tl.arange(0, PADDED), tl.arange(0, D), tl.arange(0, BLOCK)
    ring_slots = (window + PAGE - 1) // PAGE * PAGE
    for row in tl.range(row_from, row_to, num_stages=1):
        begin, count = tl.sum(tl.where(index == row, begins, 0), 0), tl.sum(tl.where(index == row, blocks, 0), 0)
        low, high = tl.maximum(first, begin) - begin, tl.minimum(last - begin, count)
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
    WHOLE: tl.constexpr, TRIES: tl.constexpr, EARLY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, g = tl.program_id(0) // GROUP, tl.program_id(0) % GROUP
    blocks, begins, _, share = _shares(LENGTHS, rows, window, programs, ROWS, PAGE, BLOCK, WHOLE, TRIES)
    index, d = tl.arange(0, ROWS), tl.arange(0, D)
    begin, count = tl.sum(tl.where(index == row, begins, 0), 0), tl.sum(tl.where(index == row, blocks, 0), 0)
    part_from, part_to = row + begin // share, row + (begin + count - 1) // share + 1
    if EARLY:
        gdc_wait()  # until the parts are there
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


def _early(device: torch.device, plan: DecodePlan) -> int:
    """``plan.early`` where the GPU can: programmatic dependent launch came with compute capability 9.0."""
    can = plan.early and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return plan.early if can and not INTERPRETED else 0


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
        "WHOLE": plan.whole and 8 * rows <= programs, "TRIES": _TRIES, "EARLY": _early(q.device, plan),
    }  # fmt: skip
    _split_kernel[(programs,)](
        q.contiguous(), cache.pool, cache.tables, cache.lengths, cache.seen, parts, stats,
        rows, cache.tables.shape[-1], cache.window, (scale or d**-0.5) * math.log2(math.e), **shape,
        PADDED=max(_MIN_ROWS, triton.next_power_of_2(group)), UPCAST=INTERPRETED, num_warps=plan.warps,
        num_stages=plan.stages, launch_pdl=shape["EARLY"] == 2,
    )  # fmt: skip
    _combine_kernel[(rows * group,)](
        parts, stats, cache.lengths, out, rows, cache.window, programs, **shape, CHUNK=plan.chunk, num_warps=4,
        num_stages=1, launch_pdl=shape["EARLY"] > 0,
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
