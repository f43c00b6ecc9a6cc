"""Causal attention over a sliding window and the admitted entries before it: the mask of WG-KV §4.2.

A query at position i sees j <= i when i - j < window, or when entry j is admitted for its KV head. Admitted keys and
values are copied once, in order, into compact arrays. A block of queries then visits

* the *vertical*: compact blocks whose entries all lie before the window of its first query. They need no mask; only
  the last of them is cut off where the entries end;
* the *slash*: the original keys from there to its last query, masked by causality, window and admission.

The bound between the two is one element of the plan's running count, so that no list of blocks exists, the memory of
the indices is two integers per token and KV head, and the main loop is that of dense attention without a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kvrepro.errors import InputError, unknown
from kvrepro.kernels import vertical_slash_hopper, vertical_slash_plan
from kvrepro.kernels.common import INTERPRETED, check_head_width
from kvrepro.kernels.vertical_slash_plan import Plan, compact, plan, plan_reference

__all__ = ["TILINGS", "Plan", "Tiling", "plan", "plan_reference", "vertical_slash_attention"]
__all__ += ["vertical_slash_attention_reference"]

GRANULE = 64  #: rows that share a window in the granular form of the published code


@dataclass(frozen=True)
class Tiling:
    """Compile-time choices: queries and keys per block, warps, and blocks of keys in flight.

    hopper: the warp-specialised kernel, for 128 queries of a 16-bit type on a GPU of that architecture. ordered: its
    two warpgroups take turns at the tensor cores.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    hopper: bool = False
    ordered: bool = False


#: Tilings by name.
TILINGS = {
    "hopper 128x128s2 ordered": Tiling(128, 128, 4, 2, hopper=True, ordered=True),
    "hopper 128x128s2": Tiling(128, 128, 4, 2, hopper=True),
    "hopper 128x64s2": Tiling(128, 64, 4, 2, hopper=True),
    "hopper 128x64s4 ordered": Tiling(128, 64, 4, 4, hopper=True, ordered=True),
    "128x128w8s3": Tiling(128, 128, 8, 3),
    "128x128w8s2": Tiling(128, 128, 8, 2),
    "128x64w8s3": Tiling(128, 64, 8, 3),
    "128x64w8s2": Tiling(128, 64, 8, 2),
    "64x32w4s2": Tiling(64, 32, 4, 2),
}


@triton.jit
def _update(s, v, top, total, acc, scale):
    """One block of raw scores and its values into the running softmax; ``top`` is in units of the exponent."""
    new_top = tl.maximum(top, tl.max(s, 1) * scale)
    p = tl.math.exp2(s * scale - new_top[:, None])
    fade = tl.math.exp2(top - new_top)
    total = total * fade + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return new_top, total, acc


@triton.jit
def _load(desc, row, column, UPCAST: tl.constexpr):
    x = desc.load([row, column])
    if UPCAST:
        x = x.to(tl.float32)
    return x


_SIZES = ["t", "n", "offset", "window", "room", "query_heads"]  # one compilation serves all of them
_STRIDES = [f"{x}_{axis}" for x in "qkv" for axis in ("batch", "head", "token")]


@triton.jit(do_not_specialize=_SIZES + _STRIDES)
def _kernel(
    Q, KEYS, VALUES, K, V, ADMITTED, COUNTS, OUT, t, n, offset, window, room, query_heads, scale,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    GROUP: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GRANULE: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    # Heads of a GQA group follow each other, so that their keys stay in the cache; within a head the longest first.
    blocks = tl.cdiv(t, BM)
    head, block = tl.program_id(0) // blocks, blocks - 1 - tl.program_id(0) % blocks
    batch, row = (head // query_heads).to(tl.int64), (head // GROUP).to(tl.int64)
    query_head, kv_head = head % query_heads, head % query_heads // GROUP
    q_at = batch * q_batch + query_head * q_head
    k_at = batch * k_batch + kv_head * k_head
    v_at = batch * v_batch + kv_head * v_head
    k_row, k_column = (k_at // k_token).to(tl.int32), (k_at % k_token).to(tl.int32)
    v_row, v_column = (v_at // v_token).to(tl.int32), (v_at % v_token).to(tl.int32)
    first = offset + block * BM
    last = tl.minimum(first + BM, offset + t) - 1
    rows = first + tl.arange(0, BM)
    low = rows // GRANULE * GRANULE - window + 1  # the first position within the window of each row
    low_first = tl.maximum(first // GRANULE * GRANULE - window + 1, 0)
    older = tl.load(COUNTS + row * n + low_first - 1, mask=low_first > 0, other=0)  # admitted before all windows

    q = _load(Q, (q_at // q_token).to(tl.int32) + block * BM, (q_at % q_token).to(tl.int32), UPCAST)
    top = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)

    compact = (row * room).to(tl.int32)
    whole = older // BN * BN
    for start in tl.range(0, whole, BN):
        k = _load(KEYS, compact + start, 0, UPCAST)
        s = tl.dot(q, k.T, input_precision="ieee")
        v = _load(VALUES, compact + start, 0, UPCAST)
        top, total, acc = _update(s, v, top, total, acc, scale)
    if whole < older:
        k = _load(KEYS, compact + whole, 0, UPCAST)
        s = tl.dot(q, k.T, input_precision="ieee")
        s = tl.where((whole + tl.arange(0, BN) < older)[None, :], s, float("-inf"))
        v = _load(VALUES, compact + whole, 0, UPCAST)
        top, total, acc = _update(s, v, top, total, acc, scale)

    # Blocks end at the last row, so that none reads beyond the keys; the first one may overlap the next and is cut.
    for done in tl.range(0, last + 1 - low_first, BN):
        end = last + 1 - done
        start = tl.maximum(end - BN, 0)
        column = start + tl.arange(0, BN)
        k = _load(K, k_row + start, k_column, UPCAST)
        s = tl.dot(q, k.T, input_precision="ieee")
        admitted = tl.load(ADMITTED + row * n + column, mask=column < n, other=0) != 0
        reach = tl.where(column < low_first, -1, tl.where(admitted, 1 << 30, column))  # the last low that sees it
        seen = (reach[None, :] >= low[:, None]) & (column[None, :] <= tl.minimum(rows, end - 1)[:, None])
        s = tl.where(seen, s, float("-inf"))
        v = _load(V, v_row + start, v_column, UPCAST)
        top, total, acc = _update(s, v, top, total, acc, scale)

    out = OUT + head.to(tl.int64) * t * D + ((rows - offset) * D)[:, None] + tl.arange(0, D)[None, :]
    total = tl.where(total > 0, total, 1.0)  # a row beyond the last query may have seen nothing
    tl.store(out, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=(rows < offset + t)[:, None])


def default_tiling(q: torch.Tensor) -> Tiling:
    """The fastest tiling known for queries ``[..., head_dim]`` that fits into the GPU's shared memory and registers."""
    head_dim = q.shape[-1]
    if q.dtype.itemsize > 2:
        return TILINGS["64x32w4s2"]
    if head_dim > 128:
        return TILINGS["128x64w8s2"]
    hopper = q.is_cuda and torch.cuda.get_device_capability(q.device)[0] == 9
    return TILINGS["hopper 128x128s2" if hopper else "128x128w8s3"]


def _tiling(tiling: Tiling | str | None, q: torch.Tensor) -> Tiling:
    if isinstance(tiling, str):
        if tiling not in TILINGS:
            raise unknown("tiling", tiling, TILINGS, "vertical-slash attention")
        return TILINGS[tiling]
    return tiling or default_tiling(q)


def _rows(x: torch.Tensor, block: int, hopper: bool) -> tuple[TensorDescriptor, tuple[int, int, int]]:
    """The memory of ``[batch, heads, n, d]`` as a matrix with one token a row, for block loads, and its strides.

    Both usual layouts fit without a copy: heads before tokens, and tokens before heads. At least ``block`` rows exist.
    """
    if x.shape[2] < block:
        x = F.pad(x, (0, 0, 0, block - x.shape[2]))
    wide, aligned = x.stride(2), 16 // x.element_size()
    fits = x.stride(3) == 1 and wide >= x.shape[3] and all(stride % aligned == 0 for stride in x.stride()[:3])
    inside = all(s % wide == 0 or s % wide + x.shape[3] <= wide for s in x.stride()[:2]) if wide else False
    if not fits or not inside or x.data_ptr() % 16:
        x = x.contiguous()
        wide = x.stride(2)
    ends = sum((size - 1) * stride for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True))
    rows = ends // wide + x.shape[2]
    describe = vertical_slash_hopper.descriptor if hopper else TensorDescriptor
    return describe(x, [rows, wide], [wide, 1], [block, x.shape[3]]), x.stride()[:3]


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, admitted: torch.Tensor, window: int, offset: int) -> None:
    (batch, query_heads, t, d), (_, kv_heads, n, _) = q.shape, k.shape
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != d or query_heads % kv_heads:
        raise InputError(
            f"Queries {list(q.shape)}, keys {list(k.shape)} and values {list(v.shape)} do not fit together; "
            "give [batch, heads, tokens, head_dim] with KV heads that divide the query heads."
        )
    if admitted.shape != k.shape[:3] or admitted.dtype != torch.bool:
        raise InputError(
            f"Admission is {admitted.dtype} {list(admitted.shape)}; give bool {list(k.shape[:3])}, one per key."
        )
    if window < 1:
        raise InputError(f"The window is {window} tokens; a query sees at least itself, so give 1 or more.")
    if t < 1 or not 0 <= offset <= n - t:
        raise InputError(
            f"{t} queries from position {offset} on do not lie within {n} keys; give an offset of at most n - t."
        )
    check_head_width(d)


def vertical_slash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    admitted: torch.Tensor,
    window: int,
    offset: int | None = None,
    granular: bool = False,
    plan: Plan | None = None,
    scale: float | None = None,
    tiling: Tiling | str | None = None,
) -> torch.Tensor:
    """Vertical-slash attention of ``t`` queries at positions ``offset`` to ``offset + t - 1`` (WG-KV §4.2).

    q ``[batch, query_heads, t, head_dim]``; k, v ``[batch, kv_heads, n, head_dim]``, rotated, of any strides but the
    last; admitted bool ``[batch, kv_heads, n]``; window in tokens; offset ``n - t`` when None. A prefill in chunks is
    one call a chunk, with ``n`` growing. ``granular``: all rows of a block of 64 positions see back to the window's
    edge of its first one, as the published code does. ``plan``: that of ``admitted``, made here when None. scale
    ``head_dim ** -0.5`` when None. Returns ``[batch, query_heads, t, head_dim]``. Products are accumulated in float32.
    No host synchronisation. Raises InputError when shapes do not fit.
    """
    (batch, query_heads, t, d), (_, kv_heads, n, _) = q.shape, k.shape
    offset = n - t if offset is None else offset
    _check(q, k, v, admitted, window, offset)
    if plan is None:
        plan = vertical_slash_plan.plan(admitted, window)
    elif plan.counts.shape != admitted.shape or plan.window != window:
        raise InputError(
            f"The plan is for {list(plan.counts.shape)} and a window of {plan.window}; "
            f"make one for {list(admitted.shape)} and {window}."
        )
    shape = _tiling(tiling, q)
    keys, values = compact(k, v, plan)
    q_block = vertical_slash_hopper.HALF if shape.hopper else shape.queries
    (q_rows, q_strides), (k_rows, k_strides), (v_rows, v_strides), (key_rows, _), (value_rows, _) = (
        _rows(x, block, shape.hopper) for x, block in ((q, q_block), *((x, shape.keys) for x in (k, v, keys, values)))
    )
    out = torch.empty(batch, query_heads, t, d, dtype=q.dtype, device=q.device)
    programs = triton.cdiv(t, shape.queries) * batch * query_heads
    arguments = (
        q_rows, key_rows, value_rows, k_rows, v_rows, admitted.contiguous().view(torch.uint8), plan.counts, out,
        t, n, offset, window, keys.shape[2], query_heads, (scale or d**-0.5) * math.log2(math.e),
        *q_strides, *k_strides, *v_strides,
    )  # fmt: skip
    shared = {"GROUP": query_heads // kv_heads, "D": d, "BN": shape.keys, "GRANULE": GRANULE if granular else 1}
    if shape.hopper:
        vertical_slash_hopper.kernel[(programs,)](
            *arguments, **shared, STAGES=shape.stages, ORDERED=shape.ordered, num_warps=shape.warps,
            maxnreg=vertical_slash_hopper.REGISTERS,
        )  # fmt: skip
    else:
        _kernel[(programs,)](
            *arguments, **shared, BM=shape.queries, UPCAST=INTERPRETED, num_warps=shape.warps, num_stages=shape.stages
        )
    return out


def visible(admitted: torch.Tensor, window: int, t: int, offset: int, granular: bool = False) -> torch.Tensor:
    """The mask of §4.2 as bool ``[batch, kv_heads, t, n]``."""
    i = torch.arange(offset, offset + t, device=admitted.device)[:, None]
    j = torch.arange(admitted.shape[-1], device=admitted.device)
    from_ = (i // GRANULE * GRANULE if granular else i) - window + 1
    return (j <= i) & ((j >= from_) | admitted[:, :, None])


def vertical_slash_attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    admitted: torch.Tensor,
    window: int,
    offset: int | None = None,
    granular: bool = False,
    plan: Plan | None = None,
    scale: float | None = None,
    tiling: Tiling | str | None = None,
) -> torch.Tensor:
    """:func:`vertical_slash_attention` in float64 with an explicit mask; ``plan`` and ``tiling`` change nothing."""
    (_, query_heads, t, d), (_, kv_heads, n, _) = q.shape, k.shape
    group = query_heads // kv_heads
    keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
    seen = visible(admitted, window, t, n - t if offset is None else offset, granular).repeat_interleave(group, 1)
    scores = (q.double() @ keys.mT * (scale or d**-0.5)).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ values).to(q.dtype)
