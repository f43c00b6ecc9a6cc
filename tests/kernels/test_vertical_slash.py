"""Vertical-slash attention against float64 at edge sizes, for every tiling, in chunks and over poisoned memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from paged_tools import DEVICE, EDGES, mask, random

from kvrepro.errors import InputError
from kvrepro.kernels.vertical_slash import (
    TILINGS,
    Tiling,
    plan,
    plan_reference,
    vertical_slash_attention,
    vertical_slash_attention_reference,
    visible,
)
from kvrepro.kernels.vertical_slash_plan import PADDING, compact, compact_reference

SMALL = Tiling(queries=64, keys=64, warps=4, stages=2)
#: The interpreter's cast to bf16 truncates; a GPU's rounds.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
#: What runs here, with a data type that suits it; the kernel for Hopper cannot be interpreted.
NAMES = [name for name, tiling in TILINGS.items() if DEVICE == "cuda" or not tiling.hopper]
SMALL_AND_HOPPER = [(SMALL, torch.float32), *((name, torch.float16) for name in NAMES if TILINGS[name].hopper)]
KINDS = ["random", "all", "none", "one empty"]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Whatever a kernel does not write is NaN, or for integers a position far outside."""
    empty = torch.empty

    def poison(*sizes, **options):
        x = empty(*sizes, **options)
        return x.fill_(float("nan") if x.is_floating_point() else -(10**6))

    monkeypatch.setattr(torch, "empty", poison)


def inputs(n, *, t=None, batch=1, heads=2, group=2, d=32, dtype=torch.float32, seed=1):
    q = random((batch, heads * group, t or n, d), seed, dtype)
    k, v = (random((batch, heads, n, d), seed + i, dtype) for i in (1, 2))
    return q, k, v


def check(q, k, v, admitted, window, **options):
    out = vertical_slash_attention(q, k, v, admitted, window, **options)
    expected = vertical_slash_attention_reference(q.double(), k, v, admitted, window, **options)
    assert out.shape == q.shape and out.dtype == q.dtype
    error = (out.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[q.dtype]
    return out


@pytest.mark.parametrize("tiling, dtype", SMALL_AND_HOPPER)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", EDGES)
def test_edge_lengths(n, kind, tiling, dtype):
    check(*inputs(n, d=64, dtype=dtype), mask(kind, 1, 2, n), 21, tiling=tiling)


@pytest.mark.parametrize("tiling, dtype", SMALL_AND_HOPPER)
@pytest.mark.parametrize("window", [1, 63, 65, 1000])
@pytest.mark.parametrize("granular", [False, True])
def test_windows(window, granular, tiling, dtype):
    check(*inputs(200, heads=1, d=64, dtype=dtype), mask("random", 1, 1, 200), window, granular=granular, tiling=tiling)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d, group", [(64, 1), (128, 4), (256, 3)])
def test_head_widths_groups_and_precisions(d, group, dtype):
    check(*inputs(130, group=group, d=d, dtype=dtype, heads=1, batch=2), mask("random", 2, 1, 130), 40)


@pytest.mark.parametrize("name", NAMES)
def test_every_tiling(name):
    check(*inputs(300, heads=1, d=128, dtype=torch.float16), mask("random", 1, 1, 300), 40, tiling=name)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("64s2") or name.endswith("64w8s2")])
def test_wide_heads(name):
    check(*inputs(300, heads=1, d=256, dtype=torch.float16), mask("random", 1, 1, 300), 40, tiling=name)


@pytest.mark.parametrize("t, offset", [(1, None), (1, 0), (65, None), (64, 64), (100, 13)])
@pytest.mark.parametrize("granular", [False, True])
@pytest.mark.parametrize("tiling, dtype", SMALL_AND_HOPPER)
def test_queries_at_an_offset(t, offset, granular, tiling, dtype):
    given = inputs(190, t=t, heads=1, d=64, dtype=dtype)
    check(*given, mask("random", 1, 1, 190), 50, offset=offset, granular=granular, tiling=tiling)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_single_tokens_equal_the_whole(kind):
    q, k, v = inputs(150, group=1)
    admitted = mask(kind, 1, 2, 150)
    whole = check(q, k, v, admitted, 33, tiling=SMALL)
    edges = [0, 70, 71, 130, 149, 150]
    parts = [
        vertical_slash_attention(q[:, :, a:b], k[:, :, :b], v[:, :, :b], admitted[:, :, :b], 33, tiling=SMALL)
        for a, b in itertools.pairwise(edges)
    ]
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-6)


def test_everything_admitted_is_dense_attention():
    q, k, v = inputs(130)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = vertical_slash_attention(q, k, v, mask("all", 1, 2, 130), 20, tiling=SMALL)
    torch.testing.assert_close(out, dense, rtol=1e-4, atol=1e-5)


def test_what_is_not_visible_has_no_influence():
    q, k, v = inputs(200, heads=1)
    admitted = mask("random", 1, 1, 200)
    out = vertical_slash_attention(q, k, v, admitted, 30, tiling=SMALL)
    hidden = ~admitted & (torch.arange(200, device=DEVICE) < 100)
    k, v = (torch.where(hidden[..., None], 1e4, x) for x in (k, v))
    late = vertical_slash_attention(q, k, v, admitted, 30, tiling=SMALL)[:, :, 130:]
    torch.testing.assert_close(late, out[:, :, 130:], rtol=0, atol=0)


@pytest.mark.parametrize("n", [20, 150])
@pytest.mark.parametrize("tiling", [tiling for tiling, _ in SMALL_AND_HOPPER])
def test_memory_of_any_layout(n, tiling):
    """Tokens before heads, slices of a longer cache whose rest is NaN, and strides that need a copy."""
    q, k, v = inputs(n, batch=2, heads=2, group=1, d=64, dtype=torch.float16)
    admitted = mask("random", 2, 2, n)
    expected = check(q, k, v, admitted, 30, tiling=tiling)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    longer = [torch.full((2, x.shape[1], n + 50, 64), float("nan")).to(x) for x in (q, k, v)]
    odd = [torch.full((2, x.shape[1], n, 65), float("nan")).to(x) for x in (q, k, v)]
    for x, rest, one in zip((q, k, v), longer, odd, strict=True):
        rest[:, :, :n], one[..., 1:] = x, x
    for same in (turned, [x[:, :, :n] for x in longer], [x[..., 1:] for x in odd]):
        torch.testing.assert_close(
            vertical_slash_attention(*same, admitted, 30, tiling=tiling), expected, rtol=0, atol=0
        )


def test_large_scores_and_a_given_scale():
    q, k, v = inputs(129)
    check(60 * q, k, v, mask("random", 1, 2, 129), 30, scale=1.0, tiling=SMALL)


def test_a_plan_given_and_its_window():
    q, k, v = inputs(129)
    admitted = mask("random", 1, 2, 129)
    check(q, k, v, admitted, 30, plan=plan(admitted, 30), tiling=SMALL)
    with pytest.raises(InputError, match="window of 31"):
        vertical_slash_attention(q, k, v, admitted, 30, plan=plan(admitted, 31))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 65, 1023, 1024, 1025])
def test_plan_and_compact_arrays(kind, n):
    admitted = mask(kind, 2, 2, n)
    found, expected = plan(admitted, 8), plan_reference(admitted, 8)
    assert torch.equal(found.counts, expected.counts)
    held = expected.positions >= 0
    assert torch.equal(found.positions[held], expected.positions[held])
    k, v = (random((2, 2, n, 16), i) for i in (1, 2))
    pairs = zip(compact(k, v, found), compact_reference(k, v, expected), strict=True)
    rows = torch.arange(triton_rows := -(-n // PADDING) * PADDING, device=DEVICE)
    for ours, theirs in pairs:
        assert ours.shape[2] == triton_rows
        count = expected.counts[:, :, -1:]
        defined = rows < (count + PADDING - 1) // PADDING * PADDING
        assert torch.equal(ours[defined], theirs[defined])


def test_plan_of_many_chunks(monkeypatch):
    monkeypatch.setattr("kvrepro.kernels.vertical_slash_plan._CHUNK", 16)
    monkeypatch.setattr("kvrepro.kernels.vertical_slash_plan._WIDE", 8)
    admitted = mask("random", 1, 2, 400)
    assert torch.equal(plan(admitted, 8).counts, plan_reference(admitted, 8).counts)


def test_the_reference_follows_the_definition():
    admitted = mask("random", 1, 2, 20)
    for granular in (False, True):
        seen = visible(admitted, 5, 12, 8, granular)
        for head in range(2):
            for i in range(8, 20):
                for j in range(20):
                    local = (i // 64 * 64 if granular else i) - j < 5
                    assert seen[0, head, i - 8, j] == (j <= i and (local or bool(admitted[0, head, j])))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"window": 0}, "window is 0"),
        ({"offset": 5}, "offset of at most"),
        ({"tiling": "128x128w8s9"}, "128x128w8s"),
        ({"admitted": torch.ones(1, 2, 9)}, "Admission is torch.float32"),
        ({"k": torch.zeros(1, 3, 10, 32)}, "do not fit together"),
    ],
)
def test_bad_input_is_one_clear_sentence(change, message):
    q, k, v = inputs(10)
    given = {"q": q, "k": k, "v": v, "admitted": mask("all", 1, 2, 10), "window": 4} | change
    with pytest.raises(InputError, match=message):
        vertical_slash_attention(**given)
