"""The write gate of WG-KV §3.2: both RMS norms, both layers, GELU and sigmoid of every KV head in one kernel.

The hidden activations never leave the registers: a program takes a block of tokens of one head, normalises their keys
once, and adds what each slice of hidden units contributes to the one output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kvrepro.errors import InputError
from kvrepro.kernels.common import INTERPRETED, check_head_width

EPS = 1e-6  #: of both norms, as in the published code


@dataclass(frozen=True)
class GateWeights:
    """Gates of one layer, all of the keys' dtype.

    norm_pre, norm_post ``[head_dim]``: of the keys before and after RoPE, shared by the heads.
    w1 ``[kv_heads, hidden, 2 * head_dim]`` (keys before RoPE first), b1 ``[kv_heads, hidden]``.
    w2 ``[kv_heads, hidden]``, b2 ``[kv_heads]``.
    """

    norm_pre: torch.Tensor
    norm_post: torch.Tensor
    w1: torch.Tensor
    b1: torch.Tensor
    w2: torch.Tensor
    b2: torch.Tensor


@dataclass(frozen=True)
class GateTiling:
    """Compile-time choices: tokens per program, hidden units per step, warps, and slices of weights in flight."""

    tokens: int = 128
    hidden: int = 64
    warps: int = 8
    stages: int = 3


#: Tilings by name.
TILINGS = {
    "128x64w8s3": GateTiling(),
    "128x128w8s2": GateTiling(128, 128, 8, 2),
    "128x32w8s4": GateTiling(128, 32, 8, 4),
    "64x64w4s3": GateTiling(64, 64, 4, 3),
    "128x64w4s3": GateTiling(128, 64, 4, 3),
    "16x64w4s4": GateTiling(16, 64, 4, 4),
    "16x32w4s6": GateTiling(16, 32, 4, 6),
    "16x128w8s3": GateTiling(16, 128, 8, 3),
    "64x64w4s2": GateTiling(64, 64, 4, 2),
    "16x32w4s4": GateTiling(16, 32, 4, 4),
}
#: A prefill, and decoding with one token per row; that for heads above 128 fits into the shared memory of an H200.
_MANY, _FEW, _FEW_WIDE = TILINGS["64x64w4s2"], TILINGS["16x64w4s4"], TILINGS["16x32w4s4"]


def default_tiling(n: int, d: int) -> GateTiling:
    """The tiling for ``n`` tokens and heads of width ``d``."""
    if n > _FEW.tokens:
        return _MANY
    return _FEW if d <= 128 else _FEW_WIDE


@triton.jit
def _normalised(x, weight, eps, D: tl.constexpr):
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32, 1) / D + eps)
    return (x32 * scale[:, None] * weight.to(tl.float32)[None, :]).to(x.dtype)


@triton.jit(do_not_specialize=["n", "heads"])
def _kernel(
    PRE, POST, NORM_PRE, NORM_POST, W1, B1, W2, B2, GATES, n, heads, hidden, eps,
    pre_batch, pre_head, pre_token, post_batch, post_head, post_token,
    D: tl.constexpr, TOKENS: tl.constexpr, HIDDEN: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    row, token = tl.program_id(1), tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    inside, d = token < n, tl.arange(0, D)
    at = token.to(tl.int64)[:, None]
    pre_at = PRE + batch * pre_batch + head * pre_head + at * pre_token + d[None, :]
    post_at = POST + batch * post_batch + head * post_head + at * post_token + d[None, :]
    pre = tl.load(pre_at, mask=inside[:, None], other=0.0)
    post = tl.load(post_at, mask=inside[:, None], other=0.0)
    pre = _normalised(pre, tl.load(NORM_PRE + d), eps, D)
    post = _normalised(post, tl.load(NORM_POST + d), eps, D)
    if UPCAST:
        pre, post = pre.to(tl.float32), post.to(tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    for start in tl.range(0, hidden, HIDDEN):
        unit = start + tl.arange(0, HIDDEN)
        held = unit < hidden
        w1 = W1 + (head * hidden + unit)[None, :] * (2 * D) + d[:, None]
        w_pre = tl.load(w1, mask=held[None, :], other=0.0)
        w_post = tl.load(w1 + D, mask=held[None, :], other=0.0)
        b1 = tl.load(B1 + head * hidden + unit, mask=held, other=0.0).to(tl.float32)
        w2 = tl.load(W2 + head * hidden + unit, mask=held, other=0.0).to(tl.float32)
        if UPCAST:
            w_pre, w_post = w_pre.to(tl.float32), w_post.to(tl.float32)
        x = tl.dot(pre, w_pre, input_precision="ieee")
        x = tl.dot(post, w_post, x, input_precision="ieee") + b1[None, :]
        x = x * (1.0 + tl.erf(x * 0.7071067811865476))  # twice the GELU
        total += tl.sum(x * (0.5 * w2)[None, :], 1)
    total += tl.load(B2 + head).to(tl.float32)
    tl.store(GATES + row.to(tl.int64) * n + token, 1.0 / (1.0 + tl.exp(-total)), mask=inside)


def _check(keys_pre_rope: torch.Tensor, keys: torch.Tensor, weights: GateWeights) -> None:
    _, heads, _, d = keys.shape
    hidden = weights.w1.shape[1]
    expected = {
        "norm_pre": (d,), "norm_post": (d,), "w1": (heads, hidden, 2 * d), "b1": (heads, hidden), "w2": (heads, hidden),
        "b2": (heads,),
    }  # fmt: skip
    for name, shape in expected.items():
        found = getattr(weights, name)
        if tuple(found.shape) != shape or found.dtype != keys.dtype:
            raise InputError(
                f"Gate weight {name} is {found.dtype} {list(found.shape)}; keys {list(keys.shape)} need {keys.dtype} "
                f"{list(shape)}."
            )
    if keys_pre_rope.shape != keys.shape or keys_pre_rope.dtype != keys.dtype:
        raise InputError(
            f"Keys before RoPE are {keys_pre_rope.dtype} {list(keys_pre_rope.shape)}; give them like those after it: "
            f"{keys.dtype} {list(keys.shape)}."
        )
    check_head_width(d)


def write_gate(
    keys_pre_rope: torch.Tensor,
    keys: torch.Tensor,
    weights: GateWeights,
    eps: float = EPS,
    tiling: GateTiling | None = None,
) -> torch.Tensor:
    """Gates in [0, 1] of all tokens: float32 ``[batch, kv_heads, n]`` (WG-KV §3.2).

    keys_pre_rope and keys, before and after RoPE: ``[batch, kv_heads, n, head_dim]``, of any strides but the last.
    GELU is the exact one. The normalised keys are rounded to the keys' dtype, as a module of that dtype does; products
    are accumulated in float32. No host synchronisation. Raises InputError when shapes or dtypes do not fit.
    """
    _check(keys_pre_rope, keys, weights)
    batch, heads, n, d = keys.shape
    tiling = tiling or default_tiling(n, d)
    pre, post = (x if x.stride(3) == 1 else x.contiguous() for x in (keys_pre_rope, keys))
    gates = torch.empty(batch, heads, n, dtype=torch.float32, device=keys.device)
    arrays = (weights.norm_pre, weights.norm_post, weights.w1, weights.b1, weights.w2, weights.b2)
    _kernel[(triton.cdiv(n, tiling.tokens), batch * heads)](
        pre, post, *(x.contiguous() for x in arrays), gates, n, heads, weights.w1.shape[1], eps,
        *pre.stride()[:3], *post.stride()[:3],
        D=d, TOKENS=tiling.tokens, HIDDEN=tiling.hidden, UPCAST=INTERPRETED,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return gates


def write_gate_reference(
    keys_pre_rope: torch.Tensor,
    keys: torch.Tensor,
    weights: GateWeights,
    eps: float = EPS,
    tiling: GateTiling | None = None,
) -> torch.Tensor:
    """:func:`write_gate` in float64, without rounding in between; ``tiling`` changes nothing."""
    d = keys.shape[-1]
    pairs = ((keys_pre_rope, weights.norm_pre), (keys, weights.norm_post))
    x = torch.cat([F.rms_norm(k.double(), (d,), norm.double(), eps) for k, norm in pairs], -1)
    hidden = F.gelu(torch.einsum("bhnd,hfd->bhnf", x, weights.w1.double()) + weights.b1.double()[:, None])
    total = torch.einsum("bhnf,hf->bhn", hidden, weights.w2.double()) + weights.b2.double()[:, None]
    return total.sigmoid().float()
