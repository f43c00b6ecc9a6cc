"""Gradient of Write-Gated Attention with respect to the log-space bias of its keys (WG-KV §3.2).

FlexAttention can give it, with one atomic addition a score. Here a program owns a block of keys, walks over the queries
beyond their window, recomputes the weights from the row sums of the forward, and adds up in registers: two matrix
products a tile, no atomics, the same result every time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrepro.kernels.common import INTERPRETED


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
    bias = tl.load(BIAS + (batch * kv_heads + head) * n + key, mask=key < n, other=0.0)
    total = tl.zeros([KEYS], tl.float32)
    start = (first + window) // ROWS * ROWS
    for member in range(GROUP):
        query_head = head * GROUP + member
        row_of = (batch * kv_heads * GROUP + query_head) * n
        for begin in tl.range(start, n, ROWS):
            row = begin + tl.arange(0, ROWS)
            there = (row < n)[:, None] & (d < D)[None, :]
            to = row.to(tl.int64)[:, None]
            q = tl.load(Q + batch * q_batch + query_head * q_head + to * q_row + d[None, :], mask=there, other=0.0)
            g = tl.load(GRAD + batch * g_batch + query_head * g_head + to * g_row + d[None, :], mask=there, other=0.0)
            if UPCAST:
                q, g = q.to(tl.float32), g.to(tl.float32)
            lse = tl.load(LSE + row_of + row, mask=row < n, other=0.0)
            delta = tl.load(DELTA + row_of + row, mask=row < n, other=0.0)
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + bias[None, :]
            distant = (row[:, None] - key[None, :] >= window) & (row < n)[:, None] & (key < n)[None, :]
            weight = tl.where(distant, tl.exp(score - lse[:, None]), 0.0)
            total += tl.sum(weight * (tl.dot(g, tl.trans(v), input_precision="ieee") - delta[:, None]), 0)
    tl.store(OUT + (batch * kv_heads + head) * n + key, total, mask=key < n)


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
    rows, keys = (64, 64) if d <= 128 else (32, 64)
    _kernel[(triton.cdiv(n, keys), batch * kv_heads)](
        query, key, value, bias.contiguous(), lse.contiguous(), grad, delta.contiguous(), out, n, kv_heads, scale,
        window, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *grad.stride()[:3],
        GROUP=heads // kv_heads, D=d, DIM=max(16, triton.next_power_of_2(d)), ROWS=rows, KEYS=keys,
        UPCAST=INTERPRETED, num_warps=4, num_stages=2,
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
