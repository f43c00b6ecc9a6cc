"""What vertical-slash attention has to know about a mask, and the compact arrays of its admitted entries (WG-KV §4.2).

Everything is made on the device: nothing waits for a count to reach the host, so arrays have room for all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvrepro.errors import InputError

PADDING = 256  #: compact rows are zero up to a multiple of this, so that whole blocks of keys may be read
_CHUNK = 1024  # tokens that one program counts
_GATHER = 64  # compact rows that one program copies
_WIDE = 1024  # chunk totals that are added at a time


@dataclass(frozen=True)
class Plan:
    """Numbering of the admitted entries of every KV head.

    counts int32 ``[batch, kv_heads, n]``: admitted entries at positions up to and including this one. The bound of any
    block of queries is one element of it, so a plan serves all block sizes.
    positions int32 ``[batch, kv_heads, n]``: of the admitted entries in order; what follows them means nothing.
    window: the one it was made for, in tokens.
    """

    counts: torch.Tensor
    positions: torch.Tensor
    window: int


@triton.jit
def _total_kernel(ADMITTED, TOTALS, n, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    admitted = tl.load(ADMITTED + row * n + at, mask=at < n, other=0).to(tl.int32)
    tl.store(TOTALS + row * tl.num_programs(1) + chunk, tl.sum(admitted, 0))


@triton.jit
def _number_kernel(ADMITTED, TOTALS, COUNTS, POSITIONS, n, CHUNK: tl.constexpr, WIDE: tl.constexpr):
    row, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    before = tl.zeros([WIDE], tl.int32)
    for start in tl.range(0, chunk, WIDE, num_stages=1):
        at = start + tl.arange(0, WIDE)
        before += tl.load(TOTALS + row * chunks + at, mask=at < chunk, other=0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    admitted = tl.load(ADMITTED + row * n + at, mask=at < n, other=0).to(tl.int32)
    counts = tl.sum(before, 0) + tl.cumsum(admitted, 0)
    tl.store(COUNTS + row * n + at, counts, mask=at < n)
    tl.store(POSITIONS + row * n + counts - 1, at, mask=admitted != 0)


@triton.jit
def _compact_kernel(
    K, V, COUNTS, POSITIONS, KEYS, VALUES, n, room, heads,
    k_batch, k_head, k_token, v_batch, v_head, v_token,
    D: tl.constexpr, ROWS: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    row, start = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS
    count = tl.load(COUNTS + row * n + n - 1)
    if start < tl.cdiv(count, PADDING) * PADDING:
        to = start + tl.arange(0, ROWS)
        held = to < count
        source = tl.load(POSITIONS + row * n + to, mask=held, other=0).to(tl.int64)
        d = tl.arange(0, D)[None, :]
        keys = K + row // heads * k_batch + row % heads * k_head + source[:, None] * k_token + d
        values = V + row // heads * v_batch + row % heads * v_head + source[:, None] * v_token + d
        target = ((row * room + to) * D)[:, None] + d
        tl.store(KEYS + target, tl.load(keys, mask=held[:, None], other=0.0))
        tl.store(VALUES + target, tl.load(values, mask=held[:, None], other=0.0))


def plan(admitted: torch.Tensor, window: int) -> Plan:
    """Number the admitted entries, bool ``[batch, kv_heads, n]``, for a window of tokens. No host synchronisation."""
    if window < 1:
        raise InputError(f"The window is {window} tokens; a query sees at least itself, so give 1 or more.")
    if admitted.dtype != torch.bool or admitted.ndim != 3 or admitted.numel() == 0:
        raise InputError(
            f"Admission is {admitted.dtype} {list(admitted.shape)}; give bool [batch, kv_heads, n] that is not empty."
        )
    batch, heads, n = admitted.shape
    flags = admitted.contiguous().view(torch.uint8)
    grid = (batch * heads, triton.cdiv(n, _CHUNK))
    totals = torch.empty(grid, dtype=torch.int32, device=admitted.device)
    counts, positions = (torch.empty(admitted.shape, dtype=torch.int32, device=admitted.device) for _ in range(2))
    _total_kernel[grid](flags, totals, n, CHUNK=_CHUNK)
    _number_kernel[grid](flags, totals, counts, positions, n, CHUNK=_CHUNK, WIDE=_WIDE)
    return Plan(counts, positions, window)


def plan_reference(admitted: torch.Tensor, window: int) -> Plan:
    """:func:`plan` in torch; positions that mean nothing are -1."""
    positions = torch.full(admitted.shape, -1, dtype=torch.int32, device=admitted.device)
    for found, row in zip(positions.flatten(0, 1), admitted.flatten(0, 1), strict=True):
        held = row.nonzero()[:, 0].int()
        found[: len(held)] = held
    return Plan(admitted.cumsum(-1, dtype=torch.int32), positions, window)


def compact(k: torch.Tensor, v: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the admitted entries, in order, at the front of ``[batch, kv_heads, room, head_dim]``.

    k, v ``[batch, kv_heads, n, head_dim]``, of any strides but the last. Rows after the admitted ones are 0 up to the
    next multiple of PADDING and undefined beyond. No host synchronisation.
    """
    batch, heads, n, d = k.shape
    room = triton.cdiv(n, PADDING) * PADDING
    keys, values = (torch.empty(batch, heads, room, d, dtype=k.dtype, device=k.device) for _ in range(2))
    _compact_kernel[(room // _GATHER, batch * heads)](
        k, v, plan.counts, plan.positions, keys, values, n, room, heads, *k.stride()[:3], *v.stride()[:3],
        D=d, ROWS=_GATHER, PADDING=PADDING,
    )  # fmt: skip
    return keys, values


def compact_reference(k: torch.Tensor, v: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`compact` in torch; all rows after the admitted ones are 0."""
    batch, heads, n, d = k.shape
    keys, values = (k.new_zeros(batch, heads, triton.cdiv(n, PADDING) * PADDING, d) for _ in range(2))
    for b in range(batch):
        for h in range(heads):
            held = plan.positions[b, h, : int(plan.counts[b, h, -1])].long()
            keys[b, h, : len(held)], values[b, h, : len(held)] = k[b, h, held], v[b, h, held]
    return keys, values
