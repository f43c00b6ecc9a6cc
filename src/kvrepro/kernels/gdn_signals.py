"""The signals of a Gated DeltaNet layer (GateSight Eq. 1) from what its forward computes, in one read of the values.

A program takes a block of (token, head) pairs and writes the three numbers of each side by side, as the scorer reads
them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrepro.errors import InputError
from kvrepro.kernels.gatesight_score import SIGNALS

PAIRS, WARPS = 64, 8  #: of a program; a pair's value vector lies in half a warp


@triton.jit(do_not_specialize=["pairs"])
def _kernel(
    BETA, GATE, VALUES, A_LOG, DT_BIAS, OUT, pairs, heads, beta_token, gate_token, value_token, value_head, out_token,
    D: tl.constexpr, PADDED: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    inside, d = pair < pairs, tl.arange(0, PADDED)
    token, head = (pair // heads).to(tl.int64), pair % heads
    row = token * value_token + head * value_head
    v = tl.load(VALUES + row[:, None] + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    beta = tl.load(BETA + token * beta_token + head, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(GATE + token * gate_token + head, mask=inside, other=0.0).to(tl.float32)
    gate += tl.load(DT_BIAS + head, mask=inside, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(A_LOG + head, mask=inside, other=0.0).to(tl.float32))
    # softplus; log(1 + x) as 2 artanh(t) up to the 13th power, for 3 t is at most 1: no digits are lost
    x = tl.exp(-tl.abs(gate))
    t = x / (2.0 + x)
    square = t * t
    series = 1 / 11 + square * (1 / 13)
    series = 1 / 7 + square * (1 / 9 + square * series)
    series = 1.0 + square * (1 / 3 + square * (1 / 5 + square * series))
    decay = -rate * (tl.maximum(gate, 0.0) + 2.0 * t * series)
    out = OUT + token * out_token + head * 3
    tl.store(out, 1.0 / (1.0 + tl.exp(-beta)), mask=inside)
    tl.store(out + 1, decay, mask=inside)
    tl.store(out + 2, tl.sqrt(tl.sum(v * v, 1)), mask=inside)


def _check(beta: torch.Tensor, gate: torch.Tensor, values: torch.Tensor, of_heads: list, out: torch.Tensor) -> None:
    n, heads, _ = values.shape
    for name, found, shape in (
        ("beta logits", beta, (n, heads)),
        ("gate logits", gate, (n, heads)),
        ("A_log", of_heads[0], (heads,)),
        ("dt_bias", of_heads[1], (heads,)),
        ("signals", out, (n, heads, SIGNALS)),
    ):
        if tuple(found.shape) != shape or found.device != values.device:
            raise InputError(
                f"{name} are {list(found.shape)} on {found.device}; values {list(values.shape)} on {values.device} "
                f"need {list(shape)} there."
            )
    if out.dtype != torch.float32 or out.stride()[1:] != (SIGNALS, 1):
        raise InputError(
            f"signals are {out.dtype} with strides {list(out.stride())}; give float32, a token's side by side."
        )


def gdn_signals(
    beta: torch.Tensor,
    gate: torch.Tensor,
    values: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Signals of a layer, written into ``out`` and returned: float32 ``[n, heads, 3]`` (GateSight Eq. 1).

    beta and gate ``[n, heads]``, the outputs of the two small projections; values ``[n, heads, d]``, of any strides but
    the last; a_log and dt_bias ``[heads]``. The write gate is sigmoid(beta), the log-decay -exp(a_log) softplus(gate +
    dt_bias), the magnitude the norm of the value vector. Everything is float32 but what is read. No memory but ``out``,
    no host synchronisation. Raises InputError when shapes or devices do not fit.
    """
    _check(beta, gate, values, [a_log, dt_bias], out)
    n, heads, d = values.shape
    if n == 0:
        return out
    beta, gate, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (beta, gate, values))
    _kernel[(triton.cdiv(n * heads, PAIRS),)](
        beta, gate, values, a_log.contiguous(), dt_bias.contiguous(), out, n * heads, heads, beta.stride(0),
        gate.stride(0), values.stride(0), values.stride(1), out.stride(0),
        D=d, PADDED=triton.next_power_of_2(d), PAIRS=PAIRS, num_warps=WARPS,
    )  # fmt: skip
    return out


def gdn_signals_reference(
    beta: torch.Tensor,
    gate: torch.Tensor,
    values: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """:func:`gdn_signals` in float64."""
    _check(beta, gate, values, [a_log, dt_bias], out)
    gate = torch.logaddexp(gate.double() + dt_bias.double(), torch.zeros_like(gate, dtype=torch.float64))
    decay = -a_log.double().exp() * gate
    out.copy_(torch.stack([beta.double().sigmoid(), decay, values.double().norm(dim=-1)], -1))
    return out
