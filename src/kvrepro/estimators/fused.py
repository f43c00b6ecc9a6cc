"""Trained estimators in the form that the fused kernel reads (GateSight §4.1)."""

from __future__ import annotations

import torch

from kvrepro.errors import InputError
from kvrepro.estimators.features import AGES
from kvrepro.estimators.mlp import FUSED_HIDDEN, Heads
from kvrepro.kernels.gatesight_score import ALIGN, Networks, padded_units
from kvrepro.models.capture import SIGNALS
from kvrepro.models.geometry import Geometry


@torch.no_grad()
def networks(heads: Heads, geometry: Geometry) -> Networks:
    """Networks of a model; standard deviations go into the weights, means of the ages into the bias.

    The means of the signals stay apart: they may be large against the deviations, and are subtracted in float32 before
    anything is rounded. Raises InputError for estimators that the kernel does not take.
    """
    if not heads.fused:
        raise InputError(f"The fused scorer takes networks of one hidden layer of at most {FUSED_HIDDEN} units.")
    layers, kv_heads, hidden = heads.b1.shape
    width = geometry.gdn_heads * SIGNALS
    first, count = zip(*(_window(row, len(geometry.gdn_layers), width) for row in heads.columns.tolist()), strict=True)
    inputs, units = max(count) * width, padded_units(hidden)
    slots = 1 << (kv_heads - 1).bit_length()  # heads, a power of two
    zeros = heads.mean.new_zeros
    padded = -(-max(1, inputs) // ALIGN) * ALIGN
    mean, w1 = zeros(layers, padded), zeros(layers, slots, units, padded)
    ages, b1 = zeros(layers, AGES, slots, units), zeros(layers, slots, units)
    w2 = zeros(layers, kv_heads, slots, units)
    w2[:, range(kv_heads), range(kv_heads), :hidden] = heads.w2
    for layer, layers_read in enumerate(count):
        f = layers_read * width
        weight = heads.w1[layer].double() / heads.std[layer].double()[:, None, None]  # [F, K, H]
        of_age = weight[f : f + AGES]
        shift = torch.einsum("f,fkh->kh", heads.mean[layer, f : f + AGES].double(), of_age)
        mean[layer, :f] = heads.mean[layer, :f]
        w1[layer, :kv_heads, :hidden, :f] = weight[:f].permute(1, 2, 0).to(w1.dtype)
        ages[layer, :, :kv_heads, :hidden] = of_age.to(ages.dtype)
        b1[layer, :kv_heads, :hidden] = (heads.b1[layer].double() - shift).to(b1.dtype)
    places = {"dtype": torch.int32, "device": heads.mean.device}
    return Networks(
        gdn_layers=len(geometry.gdn_layers),
        gdn_heads=geometry.gdn_heads,
        first=torch.tensor(first, **places),
        layers=torch.tensor(count, **places),
        mean=mean,
        w1=w1.flatten(1, 2),
        ages=ages.flatten(2),
        b1=b1.flatten(1),
        w2=w2.flatten(2),
        b2=heads.b2.contiguous(),
    )


def _window(columns: list[int], gdn_layers: int, width: int) -> tuple[int, int]:
    """First GDN layer and number of layers of the columns of the flat matrix that an attention layer reads."""
    signals = [c for c in columns if c < gdn_layers * width]
    first = signals[0] if signals else 0
    whole = first % width == 0 and len(signals) % width == 0
    if not whole or columns[: len(signals) + 1] != [*range(first, first + len(signals)), gdn_layers * width]:
        raise InputError("The fused scorer reads windows of whole neighbouring GDN layers, then the ages; retrain.")
    return first // width, len(signals) // width
