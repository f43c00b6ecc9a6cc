"""Vertical-slash attention for Hopper: the same blocks as the portable kernel, with warps that do different things.

One warp loads; two warpgroups each attend for half the queries. While a warpgroup's softmax runs on the ordinary
units, its product with the previous values and the products of the other warpgroup keep the tensor cores busy: the
scores of a block are requested before the softmax of the one before has been multiplied with its values.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

HALF = 64  #: queries of one warpgroup, which is what its matrix product takes
REGISTERS = 168  #: per thread at launch: 3 warpgroups share 64 Ki; the loading one gives most of its own away
_ATTENDING, _LOADING = gl.constexpr(240), gl.constexpr(24)  # registers per thread of the two roles


def descriptor(x: torch.Tensor, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    """Blocks of a matrix in memory, in the layout of shared memory that matrix products read."""
    element = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    return TensorDescriptor(x, shape, strides, block, gl.NVMMASharedLayout.get_default_for(block, element))


@gluon.jit
def _load_block(keys, values, at, memory, bars, turn, STAGES: gl.constexpr):
    """Load block ``turn`` of the sequence, keys first, once its place is free."""
    k_memory, v_memory = memory
    k_ready, k_empty, v_ready, v_empty = bars
    k_row, k_column, v_row, v_column = at
    stage, free = turn % STAGES, turn // STAGES & 1 ^ 1
    mbarrier.wait(k_empty.index(stage), free)
    mbarrier.expect(k_ready.index(stage), keys.block_type.nbytes)
    tma.async_copy_global_to_shared(keys, [k_row, k_column], k_ready.index(stage), k_memory.index(stage))
    mbarrier.wait(v_empty.index(stage), free)
    mbarrier.expect(v_ready.index(stage), values.block_type.nbytes)
    tma.async_copy_global_to_shared(values, [v_row, v_column], v_ready.index(stage), v_memory.index(stage))


@gluon.jit
def _load(
    descriptors, q_at, at, compact, bounds, memory, q_memory, q_ready, bars, BN: gl.constexpr, STAGES: gl.constexpr
):
    """The loading warp: the queries, then the blocks of the slash from the last to the first, then the vertical."""
    q, keys, values, k, v = descriptors
    q_row, q_column = q_at
    k_row, k_column, v_row, v_column = at
    last, low_first, older = bounds
    mbarrier.expect(q_ready, 2 * q.block_type.nbytes)
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(
            q, [q_row + half * q.block_type.shape[0], q_column], q_ready, q_memory.index(half)
        )
    turn = 0
    for done in range(0, last + 1 - low_first, BN):
        start = gl.maximum(last + 1 - done - BN, 0)
        _load_block(k, v, (k_row + start, k_column, v_row + start, v_column), memory, bars, turn, STAGES)
        turn += 1
    for start in range(0, (older + BN - 1) // BN * BN, BN):
        # The block that is cut off where the entries end comes first.
        block = (older + BN - 1) // BN * BN - BN - start
        _load_block(keys, values, (compact + block, 0, compact + block, 0), memory, bars, turn, STAGES)
        turn += 1


@gluon.jit
def _scores(q, memory, bars, turn, BN: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr):
    """Request the scores of a block."""
    mbarrier.wait(bars[0].index(turn % STAGES), turn // STAGES & 1)
    rows_per: gl.constexpr = q.type.shape[0]
    zero = gl.zeros([rows_per, BN], gl.float32, layout)
    return warpgroup_mma(q, memory[0].index(turn % STAGES).permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def _weigh(p, acc, memory, bars, turn, STAGES: gl.constexpr):
    """Request the product with the values of a block."""
    mbarrier.wait(bars[2].index(turn % STAGES), turn // STAGES & 1)
    return warpgroup_mma(p, memory[1].index(turn % STAGES), acc, is_async=True)


@gluon.jit
def _softmax(s, top, total, scale, dtype: gl.constexpr, operand: gl.constexpr):
    """A block of raw scores into the running maximum and sum; returns the weights and what fades the sum so far."""
    new_top = gl.maximum(top, gl.max(s, 1) * scale)
    p = gl.exp2(s * scale - gl.expand_dims(new_top, 1))
    fade = gl.exp2(top - new_top)
    return gl.convert_layout(p.to(dtype), operand), new_top, total * fade + gl.sum(p, 1), fade


@gluon.jit
def _attend(
    half: gl.constexpr, ADMITTED, OUT, sizes, bounds, memory, q_memory, q_ready, bars, order, scale,
    D: gl.constexpr, BN: gl.constexpr, GRANULE: gl.constexpr, STAGES: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """A warpgroup: 64 queries against all blocks, in the order in which they are loaded."""
    first, end_row, offset, window, n = sizes
    last, low_first, older = bounds
    k_empty, v_empty = bars[1], bars[3]
    rows_per: gl.constexpr = q_memory.type.shape[1]
    dtype: gl.constexpr = q_memory.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    s_columns: gl.constexpr = gl.SliceLayout(0, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    q = q_memory.index(half)
    mbarrier.wait(q_ready, 0)
    rows = first + half * rows_per + gl.arange(0, rows_per, s_rows)
    low = rows // GRANULE * GRANULE - window + 1
    top = gl.full([rows_per], -1e30, gl.float32, s_rows)
    total = gl.zeros([rows_per], gl.float32, s_rows)
    acc = gl.zeros([rows_per, D], gl.float32, o_layout)

    slash = (last + 1 - low_first + BN - 1) // BN
    turns = slash + (older + BN - 1) // BN
    masked = slash + gl.where(older % BN != 0, 1, 0)
    # Masked blocks: the slash, and the block of the vertical that is cut off.
    for turn in range(0, masked):
        s = _scores(q, memory, bars, turn, BN, STAGES, s_layout)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_empty.index(turn % STAGES), count=1)
        if turn < slash:
            end = last + 1 - turn * BN
            column = gl.maximum(end - BN, 0) + gl.arange(0, BN, s_columns)
            admitted = gl.load(ADMITTED + column, mask=column < n, other=0) != 0
            reach = gl.where(column < low_first, -1, gl.where(admitted, 1 << 30, column))  # the last low that sees it
            seen = gl.expand_dims(reach, 0) >= gl.expand_dims(low, 1)
            seen = seen & (gl.expand_dims(column, 0) <= gl.expand_dims(gl.minimum(rows, end - 1), 1))
            s = gl.where(seen, s, float("-inf"))
        else:
            column = older // BN * BN + gl.arange(0, BN, s_columns)
            s = gl.where(gl.expand_dims(column < older, 0), s, float("-inf"))
        p, top, total, fade = _softmax(s, top, total, scale, dtype, operand)
        acc = acc * gl.expand_dims(gl.convert_layout(fade, o_rows), 1)
        acc = _weigh(p, acc, memory, bars, turn, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(turn % STAGES), count=1)
    # The vertical: scores of a block, and the product with the values of the one before, at the same time.
    if masked < turns:
        s = _scores(q, memory, bars, masked, BN, STAGES, s_layout)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_empty.index(masked % STAGES), count=1)
        p, top, total, fade = _softmax(s, top, total, scale, dtype, operand)
        acc = acc * gl.expand_dims(gl.convert_layout(fade, o_rows), 1)
        for turn in range(masked + 1, turns):
            if ORDERED:  # products of the two warpgroups alternate, so that each has its softmax during the other's
                mbarrier.wait(order.index(half), (turn - masked & 1) ^ half)
            s = _scores(q, memory, bars, turn, BN, STAGES, s_layout)
            acc = _weigh(p, acc, memory, bars, turn - 1, STAGES)
            if ORDERED:
                mbarrier.arrive(order.index(1 - half), count=1)
            s = warpgroup_mma_wait(1, deps=[s])
            mbarrier.arrive(k_empty.index(turn % STAGES), count=1)
            p_next, top, total, fade = _softmax(s, top, total, scale, dtype, operand)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(v_empty.index((turn - 1) % STAGES), count=1)
            acc = acc * gl.expand_dims(gl.convert_layout(fade, o_rows), 1)
            p = p_next
        acc = _weigh(p, acc, memory, bars, turns - 1, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
    total = gl.convert_layout(gl.where(total > 0, total, 1.0), o_rows)
    row = first + half * rows_per + gl.arange(0, rows_per, o_rows)
    column = gl.arange(0, D, gl.SliceLayout(0, o_layout))
    out = OUT + gl.expand_dims((row - offset) * D, 1) + gl.expand_dims(column, 0)
    gl.store(out, (acc / gl.expand_dims(total, 1)).to(dtype), mask=gl.expand_dims(row < end_row, 1))


@gluon.jit(do_not_specialize=["t", "n", "offset", "window", "room", "query_heads"])
def kernel(
    Q, KEYS, VALUES, K, V, ADMITTED, COUNTS, OUT, t, n, offset, window, room, query_heads, scale,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    GROUP: gl.constexpr, D: gl.constexpr, BN: gl.constexpr, GRANULE: gl.constexpr, STAGES: gl.constexpr,
    ORDERED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One program per head and 128 queries; arguments as in the portable kernel, K and V loaded by blocks of BN."""
    rows_per: gl.constexpr = Q.block_type.shape[0]
    BM: gl.constexpr = 2 * rows_per
    blocks = (t + BM - 1) // BM
    head, block = gl.program_id(0) // blocks, blocks - 1 - gl.program_id(0) % blocks
    batch, row = (head // query_heads).to(gl.int64), (head // GROUP).to(gl.int64)
    query_head, kv_head = head % query_heads, head % query_heads // GROUP
    q_at = batch * q_batch + query_head * q_head
    k_at = batch * k_batch + kv_head * k_head
    v_at = batch * v_batch + kv_head * v_head
    first = offset + block * BM
    last = gl.minimum(first + BM, offset + t) - 1
    low_first = gl.maximum(first // GRANULE * GRANULE - window + 1, 0)
    older = gl.load(COUNTS + row * n + low_first - 1, mask=low_first > 0, other=0)

    q_memory = gl.allocate_shared_memory(Q.dtype, [2, rows_per, D], Q.layout)
    k_memory = gl.allocate_shared_memory(K.dtype, [STAGES, BN, D], K.layout)
    v_memory = gl.allocate_shared_memory(V.dtype, [STAGES, BN, D], V.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    order = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    mbarrier.init(order.index(0), count=1)
    mbarrier.init(order.index(1), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=1)
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)  # both warpgroups
        mbarrier.init(v_empty.index(stage), count=2)

    bars, memory, bounds = (k_ready, k_empty, v_ready, v_empty), (k_memory, v_memory), (last, low_first, older)
    at = ((k_at // k_token).to(gl.int32), (k_at % k_token).to(gl.int32))
    at += ((v_at // v_token).to(gl.int32), (v_at % v_token).to(gl.int32))
    q_place = ((q_at // q_token).to(gl.int32) + block * BM, (q_at % q_token).to(gl.int32))
    sizes = (first, offset + t, offset, window, n)
    admitted, out = ADMITTED + row * n, OUT + head.to(gl.int64) * t * D
    gl.warp_specialize(
        [
            (_attend, (
                0, admitted, out, sizes, bounds, memory, q_memory, q_ready, bars, order, scale,
                D, BN, GRANULE, STAGES, ORDERED,
            )),
            (_attend, (
                1, admitted, out, sizes, bounds, memory, q_memory, q_ready, bars, order, scale,
                D, BN, GRANULE, STAGES, ORDERED,
            )),
            (_load, (
                (Q, KEYS, VALUES, K, V), q_place, at, (row * room).to(gl.int32), bounds, memory, q_memory, q_ready,
                bars, BN, STAGES,
            )),
        ],
        [4, 1],
        [_ATTENDING, _LOADING],
    )  # fmt: skip
