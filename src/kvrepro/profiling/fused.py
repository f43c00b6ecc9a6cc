"""Kernels around the matrix products and attention of a decoder layer, for both methods of the strongest baseline.

A decode step of batch one is bound by launches as much as by bytes, so that each of these does the work of several
kernels of transformers. Each has a torch reference of the same signature.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _matvec(X, W, NORM, RES, Y, n_out, k, up, eps, HAS_NORM: tl.constexpr, HAS_RES: tl.constexpr, GLU: tl.constexpr,
            BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    row = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lines = rows[:, None].to(tl.int64) * k
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    acc_up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        inside = (rows[:, None] < n_out) & (at[None, :] < k)
        x = tl.load(X + row.to(tl.int64) * k + at, mask=at < k, other=0).to(tl.float32)
        if HAS_NORM:  # the norm's factor is one number a row, so it may come after the product
            squares += x * x
            x *= tl.load(NORM + at, mask=at < k, other=0).to(tl.float32)
        acc += tl.load(W + lines + at[None, :], mask=inside, other=0).to(tl.float32) * x[None, :]
        if GLU:
            acc_up += tl.load(W + up + lines + at[None, :], mask=inside, other=0).to(tl.float32) * x[None, :]
    y = tl.sum(acc, 1)
    y_up = tl.sum(acc_up, 1)
    if HAS_NORM:
        factor = 1 / tl.sqrt(tl.sum(squares, 0) / k + eps)
        y *= factor
        y_up *= factor
    if GLU:
        y = y / (1 + tl.exp(-y)) * y_up
    out = row.to(tl.int64) * n_out + rows
    if HAS_RES:
        y += tl.load(RES + out, mask=rows < n_out, other=0).to(tl.float32)
    tl.store(Y + out, y.to(Y.dtype.element_ty), mask=rows < n_out)


def matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    glu: bool = False,
) -> torch.Tensor:
    """``weight @ rms_norm(x)`` for few rows, plus ``residual``: each weight is read once a row, so rows should be few.

    x ``[rows, k]``, weight ``[n, k]`` (with ``glu`` ``[2n, k]``, gate rows first; the result is silu(gate) * up), norm
    ``[k]`` of the RMS norm before the product, residual ``[rows, n]``. Returns ``[rows, n]``.
    """
    rows, k = x.shape
    n = weight.shape[0] // 2 if glu else weight.shape[0]
    y = x.new_empty(rows, n)
    block_n, block_k = (4 if glu else 8), min(512, triton.next_power_of_2(k))
    _matvec[(triton.cdiv(n, block_n), rows)](
        x, weight, x if norm is None else norm, y if residual is None else residual, y, n, k, n * k, eps,
        HAS_NORM=norm is not None, HAS_RES=residual is not None, GLU=glu, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4,
    )  # fmt: skip
    return y


def matvec_reference(x, weight, norm=None, eps=0.0, residual=None, glu=False):
    """:func:`matvec` in float32."""
    h = x.float()
    if norm is not None:
        h = F.rms_norm(h, h.shape[-1:], norm.float(), eps)
    y = h @ weight.float().T
    if glu:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    return (y if residual is None else y + residual.float()).to(x.dtype)


@triton.jit
def _rotary_split(Y, POS, FREQ, QN, KN, Q, K, V, PRE, start, n, scaling, eps, HQ: tl.constexpr, HK: tl.constexpr,
                  D: tl.constexpr, HB: tl.constexpr, NORM: tl.constexpr, HAS_PRE: tl.constexpr):  # fmt: skip
    half: tl.constexpr = D // 2
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HB  # all HB heads are of one kind, since HB divides both numbers of heads
    b, t = (start + row) // n, (start + row) % n
    heads, lane = first + tl.arange(0, HB), tl.arange(0, half)
    source = Y + row * ((HQ + 2 * HK) * D) + heads[:, None] * D + lane[None, :]
    low, high = tl.load(source).to(tl.float32), tl.load(source + half).to(tl.float32)
    if first >= HQ + HK:
        to = V + ((b * HK + heads - HQ - HK) * n + t)[:, None] * D + lane[None, :]
        tl.store(to, low.to(V.dtype.element_ty))
        tl.store(to + half, high.to(V.dtype.element_ty))
    else:
        if NORM:
            factor = 1 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / D + eps)
            scale = QN if first < HQ else KN
            low *= factor[:, None] * tl.load(scale + lane).to(tl.float32)[None, :]
            high *= factor[:, None] * tl.load(scale + half + lane).to(tl.float32)[None, :]
        angle = tl.load(POS + row).to(tl.float32) * tl.load(FREQ + lane)
        cos, sin = (tl.cos(angle) * scaling)[None, :], (tl.sin(angle) * scaling)[None, :]
        if first < HQ:
            to = Q + ((b * HQ + heads) * n + t)[:, None] * D + lane[None, :]
            tl.store(to, (low * cos - high * sin).to(Q.dtype.element_ty))
            tl.store(to + half, (high * cos + low * sin).to(Q.dtype.element_ty))
        else:
            at = ((b * HK + heads - HQ) * n + t)[:, None] * D + lane[None, :]
            tl.store(K + at, (low * cos - high * sin).to(K.dtype.element_ty))
            tl.store(K + at + half, (high * cos + low * sin).to(K.dtype.element_ty))
            if HAS_PRE:
                tl.store(PRE + at, low.to(PRE.dtype.element_ty))
                tl.store(PRE + at + half, high.to(PRE.dtype.element_ty))


def rotary_split(
    y: torch.Tensor,
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    scaling: float,
    heads: tuple[int, int],
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    start: int = 0,
) -> None:
    """Split a fused projection into heads, normalise and rotate queries and keys, and lay them out head by head.

    y ``[rows, (query_heads + 2 kv_heads) * head_dim]`` (queries, keys, values) are the rows from ``start`` on of
    ``batch * n``, positions ``[rows]``, frequencies ``[head_dim / 2]`` float32; ``norms`` are the per-head RMS norms of
    queries and keys with their epsilon. Writes those rows of ``out``: queries ``[batch, query_heads, n, head_dim]``,
    keys and values ``[batch, kv_heads, n, head_dim]``, and, unless None, keys before the rotary position, as the write
    gate reads them (§3.2).
    """
    q, k, v, pre = out
    hq, hk = heads
    n, d = q.shape[2], q.shape[3]
    block = math.gcd(hq, hk)
    block = min(8, block & -block)
    q_norm, k_norm, eps = norms if norms is not None else (frequencies, frequencies, 0.0)
    _rotary_split[(y.shape[0], (hq + 2 * hk) // block)](
        y, positions, frequencies, q_norm, k_norm, q, k, v, k if pre is None else pre, start, n, scaling, eps,
        HQ=hq, HK=hk, D=d, HB=block, NORM=norms is not None, HAS_PRE=pre is not None, num_warps=2,
    )  # fmt: skip


def rotary_split_reference(y, positions, frequencies, scaling, heads, norms, out, start=0) -> None:
    """:func:`rotary_split` in float32."""
    hq, hk = heads
    n, d = out[0].shape[2:]
    q, k, v = y.view(len(y), hq + 2 * hk, d).float().split([hq, hk, hk], 1)
    if norms is not None:
        q, k = (F.rms_norm(x, (d,), w.float(), norms[2]) for x, w in ((q, norms[0]), (k, norms[1])))
    angle = positions[:, None, None].float() * frequencies
    cos, sin = (torch.cat([f(angle)] * 2, -1) * scaling for f in (torch.cos, torch.sin))
    rotated = [x * cos + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin for x in (q, k)]
    row = start + torch.arange(len(y), device=y.device)
    for to, x in zip(out, (*rotated, v, k), strict=True):
        if to is not None:
            to[row // n, :, row % n] = x.to(to.dtype)


@triton.jit
def _silu_mul(X, Y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(X + row * 2 * n + at, mask=at < n, other=0).to(tl.float32)
    up = tl.load(X + row * 2 * n + n + at, mask=at < n, other=0).to(tl.float32)
    tl.store(Y + row * n + at, (gate / (1 + tl.exp(-gate)) * up).to(Y.dtype.element_ty), mask=at < n)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of ``[rows, 2n]``, gate first: ``[rows, n]``."""
    rows, n = x.shape[0], x.shape[1] // 2
    y = x.new_empty(rows, n)
    block = min(2048, triton.next_power_of_2(n))
    _silu_mul[(rows, triton.cdiv(n, block))](x, y, n, BLOCK=block, num_warps=4)
    return y


def silu_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """:func:`silu_mul` in float32."""
    gate, up = x.float().chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)
