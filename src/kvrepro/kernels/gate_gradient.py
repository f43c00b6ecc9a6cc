"""Gradient of Write-Gated Attention with respect to the log-space bias of its keys (WG-KV §3.2).

FlexAttention can give it, with one atomic addition a score. Here a program owns a block of keys, walks over the queries
beyond their window, recomputes the weights from the row sums of the forward, and adds up in registers: two matrix
products a tile, no atomics, the same result every time. Ages are compared in the tiles only that the edge of the window
runs through, and powers are of two, which the hardware has.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrepro.kernels.common import INTERPRETED

TILE = (64, 64, 4, 2)  #: rows, keys, warps and stages for heads of up to 128
LOG2_E = 1.4426950408889634  # kernels repeat it, since they read no globals


@triton.jit
def _tile(
    Q, K_T, V_T, GRAD, LSE, DELTA, bias, key, begin, n, scale, window, q_row, g_row,
    D: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, UPCAST: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """What the queries from ``begin`` on add to the gradients of a block of keys; ``scale`` and ``bias`` are in powers
    of two. Rows beyond the end are read as zeros, which add nothing."""
    row, d = begin + tl.arange(0, ROWS), tl.arange(0, DIM)
    there = (row < n)[:, None] & (d < D)[None, :]
    at = row.to(tl.int64)[:, None]
    q = tl.load(Q + at * q_row + d[None, :], mask=there, other=0.0)
    g = tl.load(GRAD + at * g_row + d[None, :], mask=there, other=0.0)
    if UPCAST:
        q, g = q.to(tl.float32), g.to(tl.float32)
    lse = tl.load(LSE + row, mask=row < n, other=0.0) * 1.4426950408889634
    delta = tl.load(DELTA + row, mask=row < n, other=0.0)
    weight = tl.exp2(tl.dot(q, K_T, input_precision="ieee") * scale + bias[None, :] - lse[:, None])
    if EDGE:
        weight = tl.where(row[:, None] - key[None, :] >= window, weight, 0.0)
    return tl.sum(weight * (tl.dot(g, V_T, input_precision="ieee") - delta[:, None]), 0)


@triton.jit
def _kernel(
    Q, K, V, BIAS, LSE, GRAD, DELTA, OUT, n, kv_heads, scale, window,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, g_batch, g_head, g_row,
    GROUP: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * KEYS
    batch, head = (tl.program_id(1) // kv_heads).to(tl.int64), (tl.program_id(1) % kv_heads).to(tl.int64)
    key, d = first + tl.arange(0, KEYS), tl.arange(0, DIM)
    here = (key < n)[:, None] & (d < D)[None, :]
    at = key.to(tl.int64)[:, None]
    k = tl.load(K + batch * k_batch + head * k_head + at * k_row + d[None, :], mask=here, other=0.0)
    v = tl.load(V + batch * v_batch + head * v_head + at * v_row + d[None, :], mask=here, other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    k, v = tl.trans(k), tl.trans(v)
    bias = tl.load(BIAS + (batch * kv_heads + head) * n + key, mask=key < n, other=0.0) * 1.4426950408889634
    total = tl.zeros([KEYS], tl.float32)
    start = (first + window) // ROWS * ROWS
    whole = tl.minimum(tl.cdiv(first + KEYS - 1 + window, ROWS) * ROWS, n)  # from here on all queries are distant
    for member in range(GROUP):
        query_head = head * GROUP + member
        q, g = Q + batch * q_batch + query_head * q_head, GRAD + batch * g_batch + query_head * g_head
        row_of = (batch * kv_heads * GROUP + query_head) * n
        lse, delta = LSE + row_of, DELTA + row_of
        for begin in tl.range(start, whole, ROWS):
            total += _tile(
                q, k, v, g, lse, delta, bias, key, begin, n, scale, window, q_row, g_row, D, DIM, ROWS, UPCAST, True
            )
        for begin in tl.range(whole, n, ROWS):
            total += _tile(
                q, k, v, g, lse, delta, bias, key, begin, n, scale, window, q_row, g_row, D, DIM, ROWS, UPCAST, False
            )
    tl.store(OUT + (batch * kv_heads + head) * n + key, total, mask=key < n)


@triton.jit
def _row_products_kernel(
    A, B, OUT, rows, heads, n, a_batch, a_head, a_row, b_batch, b_head, b_row,
    D: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    batch, head, at = row // (heads * n), row // n % heads, row % n
    here = (row < rows)[:, None] & (d < D)[None, :]
    a = tl.load(A + (batch * a_batch + head * a_head + at * a_row)[:, None] + d[None, :], mask=here, other=0.0)
    b = tl.load(B + (batch * b_batch + head * b_head + at * b_row)[:, None] + d[None, :], mask=here, other=0.0)
    tl.store(OUT + row, tl.sum(a.to(tl.float32) * b.to(tl.float32), 1), mask=row < rows)


def row_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension of the product of two tensors ``[batch, heads, n, head_dim]`` in float32."""
    batch, heads, n, d = a.shape
    a, b = (x if x.stride(3) == 1 else x.contiguous() for x in (a, b))
    out = torch.empty(batch, heads, n, dtype=torch.float32, device=a.device)
    _row_products_kernel[(triton.cdiv(out.numel(), 64),)](
        a, b, out, out.numel(), heads, n, *a.stride()[:3], *b.stride()[:3], D=d, DIM=triton.next_power_of_2(d), ROWS=64
    )
    return out


def gate_gradient(query, key, value, bias, lse, grad, delta, window: int, scale: float) -> torch.Tensor:
    """Gradient of the bias, float32 ``[batch, kv_heads, n]``.

    query and grad (of the output) ``[batch, query_heads, n, head_dim]``, key and value ``[batch, kv_heads, n,
    head_dim]``; bias ``[batch, kv_heads, n]`` float32, added to the score of key j for queries at j + window and
    beyond; lse and delta ``[batch, query_heads, n]`` float32: logarithm of a row's sum of weights, and the row's
    product of output and gradient.
    """
    batch, heads, n, d = query.shape
    kv_heads = key.shape[1]
    query, key, value, grad = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value, grad))
    out = torch.empty(batch, kv_heads, n, dtype=torch.float32, device=query.device)
    rows, keys, warps, stages = TILE if d <= 128 else (32, 64, 4, 2)
    _kernel[(triton.cdiv(n, keys), batch * kv_heads)](
        query, key, value, bias.contiguous(), lse.contiguous(), grad, delta.contiguous(), out, n, kv_heads,
        scale * LOG2_E, window, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *grad.stride()[:3],
        GROUP=heads // kv_heads, D=d, DIM=max(16, triton.next_power_of_2(d)), ROWS=rows, KEYS=keys,
        UPCAST=INTERPRETED, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def gate_gradient_reference(query, key, value, bias, lse, grad, delta, window: int, scale: float) -> torch.Tensor:
    """:func:`gate_gradient` in float64, all scores at once."""
    batch, heads, n, _ = query.shape
    group = heads // key.shape[1]
    wide_key, wide_value, wide_bias = (x.double().repeat_interleave(group, 1) for x in (key, value, bias))
    age = torch.arange(n, device=query.device)[:, None] - torch.arange(n, device=query.device)
    score = query.double() @ wide_key.mT * scale + wide_bias[:, :, None]
    weight = (score - lse.double()[..., None]).exp().masked_fill(age < window, 0.0)
    slope = weight * (grad.double() @ wide_value.mT - delta.double()[..., None])
    return slope.sum(2).view(batch, -1, group, n).sum(2).float()
