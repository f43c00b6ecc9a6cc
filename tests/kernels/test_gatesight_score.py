"""The fused scorer against float64 at edge sizes, for several geometries, precisions, tilings and layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paged_tools import DEVICE
from synthetic_labels import GEOMETRY

from kvrepro.errors import InputError
from kvrepro.estimators import fused
from kvrepro.estimators.features import columns
from kvrepro.estimators.mlp import Estimators, Heads, flat
from kvrepro.kernels.gatesight_score import (
    PRECISIONS,
    TILINGS,
    ScoreTiling,
    gatesight_score,
    gatesight_score_reference,
)
from kvrepro.models.geometry import Geometry

EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 200)
SMALL = ScoreTiling(64, 64, 32, 4, 2)
TOLERANCE = {"ieee": 5e-6, "tf32": 5e-3, "tf32x3": 2e-5}  # the interpreter multiplies in float32 whatever is asked


def hybrid(attention: tuple[int, ...], gdn: int, heads: int, kv_heads: int) -> Geometry:
    """A geometry of which only what estimators read matters: ``gdn`` GDN layers, ``heads`` heads in each."""
    total = gdn + len(attention)
    others = tuple(i for i in range(total) if i not in attention)
    shape = {"layers": total, "attention_layers": attention, "gdn_layers": others}
    return replace(GEOMETRY, **shape, kv_heads=kv_heads, query_heads=2 * kv_heads, gdn_heads=heads)


GEOMETRIES = {
    "three-windows": (GEOMETRY, 8),  # 9 signals a layer: no whole number of steps
    "three-kv-heads": (hybrid((3, 5), 5, 2, 3), 5),
    "one-kv-head": (hybrid((2,), 3, 4, 1), 33),
    "lab-hybrid": (hybrid((3, 7, 11), 9, 8, 2), 64),
    "Qwen3.8-27B, two attention layers": (hybrid((3, 7), 6, 48, 4), 64),  # windows of 3 and 6, as its first two
    "Qwen3.8-Flash-Next, one attention layer": (hybrid((6,), 6, 48, 2), 64),
}


def heads(geometry: Geometry, hidden: int, window: int = 6, seed: int = 0) -> Heads:
    """Random networks whose scores differ; statistics of signals with a mean far from zero."""
    g = torch.Generator().manual_seed(seed)
    cols = columns(geometry, window)
    a, f, k = *cols.shape, geometry.kv_heads
    real = cols < len(geometry.gdn_layers) * geometry.gdn_heads * 3 + 3

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    return Heads(
        columns=cols,
        mean=torch.where(real, 2 + normal(a, f), 0.0),
        std=torch.where(real, 0.5 + torch.rand(a, f, generator=g), 1.0),
        w1=normal(a, f, k, hidden) * real[..., None, None] * f**-0.5,
        b1=normal(a, k, hidden),
        w2=normal(a, k, hidden) * 2 * hidden**-0.5,
        b2=normal(a, k),
    ).to(DEVICE)


def signals(geometry: Geometry, n: int, dtype=torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(n)
    shape = len(geometry.gdn_layers), n, geometry.gdn_heads, 3
    return (2 + torch.randn(shape, generator=g)).to(DEVICE, dtype)


def in_float64(given: torch.Tensor, weights: Heads) -> torch.Tensor:
    """The batched networks of the estimators, in float64."""
    exact = Heads(*(x.double() if x.is_floating_point() else x for x in vars(weights).values()))
    return exact.logits(exact.standardised(flat(given.double()))).sigmoid()


def check(given, weights, geometry, precision="ieee", **options):
    """Kernel, reference and float64 agree, and every score is written."""
    networks = fused.networks(weights, geometry)
    expected = in_float64(given, weights)
    found = gatesight_score(given, networks, precision, **options)
    assert found.dtype == torch.float32 and found.shape == expected.shape
    assert expected.numel() < 9 or expected.std() > 0.05, "scores that hardly differ test nothing"
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=TOLERANCE[precision])
    reference = gatesight_score_reference(given, networks)
    torch.testing.assert_close(reference.double(), expected, rtol=0, atol=5e-6)
    return found


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What is not written shows: fresh memory holds NaN."""
    empty = torch.empty

    def poisonous(*shape, **options):
        made = empty(*shape, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisonous)


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("name", ["three-windows", "three-kv-heads"])
def test_edge_sizes(n, name):
    geometry, hidden = GEOMETRIES[name]
    check(signals(geometry, n), heads(geometry, hidden), geometry)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(name):
    geometry, hidden = GEOMETRIES[name]
    check(signals(geometry, 129), heads(geometry, hidden), geometry)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions_with_their_own_tilings(precision):
    geometry, hidden = GEOMETRIES["lab-hybrid"]
    check(signals(geometry, 130), heads(geometry, hidden), geometry, precision)


@pytest.mark.parametrize("name", TILINGS)
def test_every_tiling_at_the_published_widths(name):
    geometry, hidden = GEOMETRIES["Qwen3.8-27B, two attention layers"]
    check(signals(geometry, 65), heads(geometry, hidden), geometry, "tf32", tiling=TILINGS[name])


def test_heads_that_do_not_fit_one_program_are_split():
    geometry, hidden = GEOMETRIES["three-kv-heads"]
    check(signals(geometry, 70), heads(geometry, hidden), geometry, tiling=replace(SMALL, units=16))


def test_a_window_of_no_layers_reads_the_age_alone():
    geometry = GEOMETRY
    check(signals(geometry, 66), heads(geometry, 16, window=0), geometry)


def test_a_large_mean_beside_a_small_deviation_is_subtracted_before_rounding():
    geometry, hidden = GEOMETRIES["lab-hybrid"]
    weights = heads(geometry, hidden)
    real = weights.columns < len(geometry.gdn_layers) * geometry.gdn_heads * 3
    weights.mean[real] += 100
    check(signals(geometry, 65) + 100, weights, geometry)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_signals_of_half_precision_are_read_as_they_are(dtype):
    geometry, hidden = GEOMETRIES["three-windows"]
    check(signals(geometry, 65, dtype), heads(geometry, hidden), geometry)


def test_strided_signals():
    geometry, hidden = GEOMETRIES["three-windows"]
    wide = signals(geometry, 140)
    check(wide[:, ::2], heads(geometry, hidden), geometry, tiling=SMALL)
    swapped = wide.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(
        check(swapped, heads(geometry, hidden), geometry), check(wide, heads(geometry, hidden), geometry)
    )


def test_what_lies_behind_the_signals_is_not_read():
    geometry, hidden = GEOMETRIES["three-windows"]
    n, weights = 65, heads(geometry, hidden)
    room = torch.full((len(geometry.gdn_layers) + 1, n + 3, geometry.gdn_heads, 3), float("nan"), device=DEVICE)
    room[:-1, :n] = signals(geometry, n)
    check(room[:-1, :n], weights, geometry)


def test_no_tokens_no_scores():
    networks = fused.networks(heads(GEOMETRY, 8), GEOMETRY)
    assert gatesight_score(signals(GEOMETRY, 0), networks).shape == (3, 2, 0)


def test_bad_input_is_named():
    weights = heads(GEOMETRY, 8)
    networks, given = fused.networks(weights, GEOMETRY), signals(GEOMETRY, 5)
    with pytest.raises(InputError, match="the networks read"):
        gatesight_score(given[:-1], networks)
    with pytest.raises(InputError, match="the networks read"):
        gatesight_score(given.int(), networks)
    with pytest.raises(InputError, match="tf16"):
        gatesight_score(given, networks, "tf16")
    with pytest.raises(InputError, match="at most 256 units"):
        fused.networks(heads(GEOMETRY, 300), GEOMETRY)
    with pytest.raises(InputError, match="one hidden layer"):
        fused.networks(replace(weights, w1=None), GEOMETRY)
    with pytest.raises(InputError, match="whole neighbouring GDN layers"):
        fused.networks(replace(weights, columns=weights.columns.flip(1)), GEOMETRY)


def test_the_estimators_score_the_same():
    weights, given = heads(GEOMETRY, 8), signals(GEOMETRY, 100)
    batched = Estimators(weights, None, GEOMETRY, "", "made-up", [], {}).score(given)
    found = gatesight_score(given, fused.networks(weights, GEOMETRY), "ieee")
    torch.testing.assert_close(found, torch.stack(batched), rtol=0, atol=5e-6)
