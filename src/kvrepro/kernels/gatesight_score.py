"""GateSight's scores of a whole context in one kernel: features, standardisation and all networks (GateSight §4.1).

A program takes a block of tokens and the networks of one attention layer, as many KV heads of it as fit into the
registers, so that the heads share one read of the signals. Neither features nor hidden units are written to memory.
Programs of one block of tokens start together: neighbouring layers read overlapping windows from the L2 cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvrepro.errors import InputError, unknown

SIGNALS, AGES = 3, 3  #: numbers of a GDN head and token, and of an entry's age (Eq. 3)
ALIGN = 64  #: inputs are padded to a multiple of it
#: How the first layer multiplies; sums are float32. ``ieee`` is exact float32 and leaves the tensor cores idle;
#: ``tf32`` rounds the centred signals and the weights to 11 bits; ``tf32x3`` makes up for that in three products.
PRECISIONS = ("ieee", "tf32", "tf32x3")


@dataclass(frozen=True)
class Networks:
    """All networks of a model: x -> sigmoid(w2 · relu(w1 (s - mean) + ages · x_age + b1) + b2), s signals, x_age ages.

    A attention layers, K KV heads, U hidden units of all KV heads of a layer, a head's side by side, F signals of the
    widest window. The last axis of every array is contiguous; padded units and inputs have weight zero.
    """

    gdn_layers: int
    gdn_heads: int
    first: torch.Tensor  #: [A] int32, first GDN layer of the window
    layers: torch.Tensor  #: [A] int32, GDN layers in the window
    mean: torch.Tensor  #: [A, F]
    w1: torch.Tensor  #: [A, U, F], divided by the standard deviations
    ages: torch.Tensor  #: [A, 3, U], the first layer's weights of the ages, divided likewise
    b1: torch.Tensor  #: [A, U], less what the means of the ages add
    w2: torch.Tensor  #: [A, K, U], zero at the units of other heads
    b2: torch.Tensor  #: [A, K]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Attention layers, KV heads, and hidden units with which a head is padded."""
        layers, heads, units = self.w2.shape
        return layers, heads, units // _padded_heads(heads)

    def to(self, device: torch.device | str) -> Networks:
        """The same on another device."""
        return Networks(**{k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in vars(self).items()})


@dataclass(frozen=True)
class ScoreTiling:
    """Compile-time choices: tokens and hidden units per program, inputs per step, warps, and steps in flight."""

    tokens: int = 128
    units: int = 256
    inputs: int = 32
    warps: int = 8
    stages: int = 3


#: Tilings by name.
TILINGS = {
    "128x256x32w8s3": ScoreTiling(),
    "128x256x32w8s4": ScoreTiling(stages=4),
    "128x256x32w8s2": ScoreTiling(stages=2),
    "128x128x32w4s4": ScoreTiling(units=128, warps=4, stages=4),
    "128x128x32w8s4": ScoreTiling(units=128, stages=4),
    "64x256x32w4s3": ScoreTiling(tokens=64, warps=4),
    "64x256x32w8s3": ScoreTiling(tokens=64),
    "64x128x64w4s3": ScoreTiling(64, 128, 64, 4, 3),
    "128x64x32w4s3": ScoreTiling(units=64, warps=4),
    "64x64x32w4s3": ScoreTiling(64, 64, 32, 4, 3),
}
DEFAULT = TILINGS["128x256x32w8s3"]
#: Three products need more registers, and float32 ones keep both operands there.
_OF_PRECISION = {"tf32": DEFAULT, "tf32x3": TILINGS["128x128x32w8s4"], "ieee": TILINGS["64x64x32w4s3"]}


def default_tiling(precision: str) -> ScoreTiling:
    """The tiling of a precision, whose sums the registers of an H200 hold."""
    return _OF_PRECISION[precision]


def _padded_heads(heads: int) -> int:
    return triton.next_power_of_2(heads)


def padded_units(hidden: int) -> int:
    """Hidden units with which a head is padded: a power of two that a tile can have."""
    return max(16, triton.next_power_of_2(hidden))


@triton.jit(do_not_specialize=["n", "log_n"])
def _kernel(
    GIVEN, FIRST, LAYERS, MEAN, W1, BY_AGE, B1, W2, B2, SCORES, n, log_n, layer_stride, token_stride,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    UNITS: tl.constexpr, TOKENS: tl.constexpr, INPUTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    layer, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    unit = group * UNITS + tl.arange(0, UNITS)
    inside, row = token < n, tl.arange(0, INPUTS)
    units = GROUPS * UNITS

    first = GIVEN + tl.load(FIRST + layer).to(tl.int64) * layer_stride
    rows = first + token.to(tl.int64)[:, None] * token_stride
    weights = W1 + (layer * units + unit)[None, :] * PADDED
    total = tl.zeros([TOKENS, UNITS], tl.float32)
    inputs = tl.load(LAYERS + layer) * WIDTH
    for start in tl.range(0, inputs, INPUTS):
        at = start + row
        within = at < inputs
        place = (at // WIDTH).to(tl.int64) * layer_stride + at % WIDTH
        x = tl.load(rows + place[None, :], mask=inside[:, None] & within[None, :], other=0.0).to(tl.float32)
        x -= tl.load(MEAN + layer * PADDED + at, mask=within, other=0.0)[None, :]
        total = tl.dot(x, tl.load(weights + at[:, None]), total, input_precision=PRECISION)

    # what needs no tensor core comes last, in the layout that the products leave
    rest = tl.where(inside, n - 1 - token, 0).to(tl.float32)  # entries are counted from one
    of_age = BY_AGE + layer * 3 * units + unit
    total += tl.load(B1 + layer * units + unit)[None, :]
    total += ((token + 1).to(tl.float32) / n)[:, None] * tl.load(of_age)[None, :]
    total += (rest / n)[:, None] * tl.load(of_age + units)[None, :]
    total += (tl.log(1.0 + rest) / log_n)[:, None] * tl.load(of_age + 2 * units)[None, :]
    total = tl.maximum(total, 0.0)
    for head in tl.static_range(HEADS):
        number = group * HEADS + head
        if number < KV_HEADS:
            score = tl.sum(total * tl.load(W2 + (layer * KV_HEADS + number) * units + unit)[None, :], 1)
            score += tl.load(B2 + layer * KV_HEADS + number)
            out = SCORES + (layer * KV_HEADS + number).to(tl.int64) * n + token
            tl.store(out, 1.0 / (1.0 + tl.exp(-score)), mask=inside)


def _check(signals: torch.Tensor, networks: Networks) -> None:
    expected = networks.gdn_layers, networks.gdn_heads, SIGNALS
    if signals.ndim != 4 or (signals.shape[0], *signals.shape[2:]) != expected or not signals.is_floating_point():
        raise InputError(
            f"Signals are {signals.dtype} {list(signals.shape)}; the networks read floating-point "
            f"[{expected[0]}, n, {expected[1]}, {SIGNALS}]."
        )
    if networks.mean.device != signals.device:
        raise InputError(f"Networks are on {networks.mean.device} and signals on {signals.device}; move the networks.")


def gatesight_score(
    signals: torch.Tensor, networks: Networks, precision: str = "tf32", tiling: ScoreTiling | None = None
) -> torch.Tensor:
    """Predicted utility of every entry: float32 ``[attention_layers, kv_heads, n]`` in [0, 1] (GateSight §4.1, Eq. 3).

    signals ``[gdn_layers, n, gdn_heads, 3]`` of any floating-point dtype, finite. ``precision`` is one of PRECISIONS.
    Takes no memory but the scores. No host synchronisation. Raises InputError when shapes or devices do not fit.
    """
    _check(signals, networks)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS, "gatesight_score")
    tiling = tiling or default_tiling(precision)
    n, width = signals.shape[1], networks.gdn_heads * SIGNALS
    if signals.stride()[2:] != (SIGNALS, 1):
        signals = signals.contiguous()
    layers, kv_heads, hidden = networks.shape
    scores = torch.empty(layers, kv_heads, n, dtype=torch.float32, device=signals.device)
    if n == 0:
        return scores
    heads = min(_padded_heads(kv_heads), max(1, tiling.units // hidden))  # both are powers of two
    groups = _padded_heads(kv_heads) // heads
    _kernel[(layers * groups, triton.cdiv(n, tiling.tokens))](
        signals, networks.first, networks.layers, networks.mean, networks.w1, networks.ages, networks.b1, networks.w2,
        networks.b2, scores, n, math.log1p(n), signals.stride(0), signals.stride(1),
        GROUPS=groups, HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, PADDED=networks.mean.shape[1],
        UNITS=heads * hidden, TOKENS=tiling.tokens, INPUTS=tiling.inputs, PRECISION=precision,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return scores


def gatesight_score_reference(
    signals: torch.Tensor, networks: Networks, precision: str = "ieee", tiling: ScoreTiling | None = None
) -> torch.Tensor:
    """:func:`gatesight_score` in float64, layer after layer; ``precision`` and ``tiling`` change nothing."""
    _check(signals, networks)
    n, width = signals.shape[1], networks.gdn_heads * SIGNALS
    i = torch.arange(1, n + 1, device=signals.device, dtype=torch.float64)
    ages = torch.stack([i / n, (n - i) / n, torch.log1p(n - i) / math.log1p(n)], 1)
    scores = []
    for layer, (first, count) in enumerate(zip(networks.first.tolist(), networks.layers.tolist(), strict=True)):
        x = signals[first : first + count].double().transpose(0, 1).reshape(n, count * width)
        w1, mean = (w[layer, ..., : count * width].double() for w in (networks.w1, networks.mean))
        hidden = (x - mean) @ w1.T + ages @ networks.ages[layer].double() + networks.b1[layer].double()
        out = hidden.relu() @ networks.w2[layer].double().T + networks.b2[layer].double()
        scores.append(out.sigmoid().T.float())
    return torch.stack(scores)
