"""Ragged decode attention against float64 at edge sizes, over poisoned pools and for every way of cutting the work."""

from __future__ import annotations

import pytest
import torch
from paged_tools import DEVICE, DTYPES, EDGES, empty, filled, mask, random

from kvrepro.errors import InputError
from kvrepro.kernels import ragged_decode
from kvrepro.kernels.paged_cache import prefill
from kvrepro.kernels.promotion import promote_and_append
from kvrepro.kernels.ragged_decode import DecodePlan, ragged_decode_attention, ragged_decode_attention_reference

SMALL = DecodePlan(block=32, programs=1, chunk=8)


def assert_close(out, expected, dtype=torch.float32):
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    error = (out.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-9)
    assert error < tolerance


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("kind", ["random", "all", "none", "one empty"])
def test_edge_lengths(n, kind):
    cache, *_ = filled(21, kind, n, batch=2)
    q = random((2, 8, 32), 5)
    assert_close(ragged_decode_attention(q, cache, plan=SMALL), ragged_decode_attention_reference(q, cache))


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_groups_and_head_widths(group, dim):
    cache, *_ = filled(32, "random", 90, heads=2, dim=dim)
    q = random((1, 2 * group, dim), 5)
    assert_close(ragged_decode_attention(q, cache, plan=SMALL), ragged_decode_attention_reference(q, cache))


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision(dtype):
    cache, *_ = filled(32, "random", 300, dim=128, dtype=dtype)
    q = random((1, 8, 128), 5, dtype)
    assert_close(ragged_decode_attention(q, cache), ragged_decode_attention_reference(q, cache), dtype)


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("programs", [1, 5])
@pytest.mark.parametrize("chunk", [8, 32])
def test_however_the_work_is_cut(block, programs, chunk):
    cache, *_ = filled(24, "one empty", 200, batch=2)
    q = random((2, 4, 32), 5)
    plan = DecodePlan(block=block, programs=programs, chunk=chunk, stages=2)
    assert_close(ragged_decode_attention(q, cache, plan=plan), ragged_decode_attention_reference(q, cache))


@pytest.mark.parametrize("early", [False, True])
def test_calls_that_follow_each_other(early):
    """A kernel that did not wait would read what the one before it has not written, or what an older one left there."""
    caches = [filled(32, "random", n, n, heads=4, dim=64, pages=160)[0] for n in (400, 600)]
    plan, queries = DecodePlan(early=early), [random((1, 16, 64), seed) for seed in range(4)]
    found = [ragged_decode_attention(q, caches[i % 2], plan=plan) for i, q in enumerate(queries)]
    for i, (q, out) in enumerate(zip(queries, found, strict=True)):
        assert_close(out, ragged_decode_attention_reference(q, caches[i % 2]))


def test_kernels_are_launched_early_where_the_gpu_can(monkeypatch):
    gpu = torch.device("cuda")
    for capability, interpreted, expected in (((9, 0), False, True), ((8, 9), False, False), ((9, 0), True, False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        monkeypatch.setattr(ragged_decode, "INTERPRETED", interpreted)
        assert ragged_decode._early(gpu, DecodePlan()) == expected
        assert not ragged_decode._early(gpu, DecodePlan(early=False))
        assert not ragged_decode._early(torch.device("cpu"), DecodePlan())


def test_large_scores_and_a_given_scale():
    cache, *_ = filled(24, "random", 129)
    q = 60 * random((1, 4, 32), 5)
    out = ragged_decode_attention(q, cache, scale=1.0, plan=SMALL)
    assert_close(out, ragged_decode_attention_reference(q, cache, scale=1.0))


def test_rows_that_hold_nothing_give_zero():
    out = ragged_decode_attention(random((1, 4, 32), 5), empty(20), plan=SMALL)
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("window", [16, 21])
def test_decode_after_prefill_equals_prefill_of_the_longer_sequence(window):
    n, steps, batch, heads, group = 70, 30, 2, 2, 2
    keys, values = (random((batch, heads, n + steps, 32), i) for i in (1, 2))
    admitted = mask("random", batch, heads, n + steps)
    q = random((batch, heads * group, n + steps, 32), 3)
    age = torch.arange(n + steps, device=DEVICE)[:, None] - torch.arange(n + steps, device=DEVICE)
    visible = (age >= 0) & ((age < window) | admitted[:, :, None])  # the mask of §4.2
    longer = torch.nn.functional.scaled_dot_product_attention(
        q.double(),
        *(x.double().repeat_interleave(group, 1) for x in (keys, values)),
        visible.repeat_interleave(group, 1),
    )
    cache = empty(window, batch=batch)
    prefill(cache, keys[:, :, :n], values[:, :, :n], admitted[:, :, :n])
    for i in range(n, n + steps):
        promote_and_append(cache, keys[:, :, i], values[:, :, i], admitted[:, :, i])
        if i % 7 == 0 or i == n + steps - 1:
            assert_close(ragged_decode_attention(q[:, :, i], cache, plan=SMALL), longer[:, :, i])


def test_queries_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="do not fit 1 rows of 2 KV heads"):
        ragged_decode_attention(random((1, 3, 32), 1), empty(16))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU: there is no graph to capture without one")
@pytest.mark.parametrize("early", [False, True])
def test_a_graph_stays_valid_while_lengths_change(early):
    plan = DecodePlan(chunk=16, early=early)
    cache, *_ = filled(32, "random", 500, dim=128, dtype=torch.bfloat16)
    q, new = random((1, 8, 128), 5, torch.bfloat16), random((1, 2, 128), 6, torch.bfloat16)
    admitted = mask("all", 1, 2, 1)[..., 0]
    ragged_decode_attention(q, cache, plan=plan)
    promote_and_append(cache, new, new, admitted)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        promote_and_append(cache, new, new, admitted)
        out = ragged_decode_attention(q, cache, plan=plan)
    for i in range(70):
        new.copy_(random((1, 2, 128), 100 + i, torch.bfloat16))
        out.fill_(float("nan"))
        graph.replay()
        assert_close(out, ragged_decode_attention_reference(q, cache), torch.bfloat16)
