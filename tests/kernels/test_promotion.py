"""Lazy promotion: one kernel for all rows against the reference, inside a CUDA graph, and at the end of the pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paged_tools import DEVICE, assert_same, clone, empty, filled, host, mask, random

from kvrepro.cache.dual import DualCache
from kvrepro.kernels.paged_cache import PoolExhausted, check_room, prefill
from kvrepro.kernels.promotion import promote_and_append, promote_and_append_reference


def step(rows, seed, kind="random"):
    keys, values = (random((*rows, 32), 1000 + 2 * seed + i) for i in (0, 1))
    return keys, values, mask(kind, *rows[-2:], 1, seed)[..., 0].expand(rows)


@pytest.mark.parametrize("window, start", [(16, 40), (21, 1)])
@pytest.mark.parametrize("kind", ["random", "all", "none", "one empty"])
def test_steps_equal_the_reference(window, kind, start):
    cache, *_ = filled(window, kind, start, batch=2)
    expected = host(cache)
    for i in range(2 * window + 3):
        new = step((2, 2), i, kind)
        promote_and_append(cache, *new)
        promote_and_append_reference(expected, *(x.cpu() for x in new))
    if kind == "random":  # rows take pages in any order on a GPU, so only what they hold is compared
        assert int(cache.lengths.min()) > 0
    assert_rows_equal(cache, expected)


def assert_rows_equal(a, b):
    a, b = host(a), host(b)
    assert torch.equal(a.lengths, b.lengths)
    assert torch.equal(a.seen, b.seen)
    assert torch.equal(a.admitted, b.admitted)
    assert torch.equal(a.free_count, b.free_count)
    one, other = (DualCache(c if c.seen.dim() == 3 else as_one_layer(c)) for c in (a, b))
    for row in torch.cartesian_prod(*(torch.arange(n) for n in one.rows.seen.shape)).tolist():
        for x, y in zip(one.contents(*row), other.contents(*row), strict=True):
            assert torch.equal(x, y)


def as_one_layer(cache):
    return replace(cache, **{name: getattr(cache, name)[None] for name in ("tables", "lengths", "seen", "admitted")})


def test_all_layers_in_one_kernel_equal_layer_by_layer():
    cache = empty(16, layers=3)
    for layer in range(3):
        prefill(cache.layer(layer), random((1, 2, 50, 32), layer), random((1, 2, 50, 32), 9), mask("all", 1, 2, 50))
    single = clone(cache)
    for i in range(20):
        keys, values, admitted = step((3, 1, 2), i)
        promote_and_append(cache, keys, values, admitted)
        for layer in range(3):
            promote_and_append(single.layer(layer), keys[layer], values[layer], admitted[layer])
    assert_rows_equal(cache, single)


def test_a_row_that_finds_no_page_keeps_what_it_has():
    cache, *_ = filled(16, "all", 16 + 32, pages=6)  # two pages of ring, four of global region: the pool is empty
    assert int(cache.free_count) == 0
    before = clone(cache)
    promote_and_append(cache, *step((1, 2), 0))
    assert int(cache.exhausted) == 1
    before.exhausted.fill_(1)
    assert_same(cache, before)


def test_one_free_page_goes_to_one_row_and_the_other_stays():
    cache, *_ = filled(16, "all", 16 + 32, pages=7)
    before = clone(cache)
    promote_and_append(cache, *step((1, 2), 0))
    assert sorted((cache.lengths - before.lengths).flatten().tolist()) == [0, 1]
    assert int(cache.free_count) == 0
    assert int(cache.exhausted) == 1
    stopped = int((cache.lengths == before.lengths).flatten().nonzero())
    assert torch.equal(cache.seen.flatten()[stopped], before.seen.flatten()[stopped])


def test_a_full_page_table_stops_a_row_too():
    cache, *_ = filled(16, "all", 16 + 32, table=2)
    before = clone(cache)
    promote_and_append(cache, *step((1, 2), 0))
    before.exhausted.fill_(1)
    assert_same(cache, before)


def test_the_reservation_covers_the_worst_case_exactly():
    cache, *_ = filled(16, "all", 16 + 30, pages=8)  # each row has 2 places on its last page, and one more page
    check_room(cache, 18)
    with pytest.raises(PoolExhausted):
        check_room(cache, 19)
    for i in range(18):
        promote_and_append(cache, *step((1, 2), i, "all"))
    assert int(cache.exhausted) == 0
    assert cache.lengths.tolist() == [[48, 48]]


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU: there is no graph to capture without one")
def test_replay_of_a_graph_equals_single_steps():
    cache, *_ = filled(16, "random", 60, batch=2)
    expected = clone(cache)
    inputs = [x.clone() for x in step((2, 2), 0)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        scratch = clone(cache)
        promote_and_append(scratch, *inputs)  # compiles outside the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        promote_and_append(cache, *inputs)
    for i in range(40):
        for to, new in zip(inputs, step((2, 2), i), strict=True):
            to.copy_(new)
        graph.replay()
        promote_and_append(expected, *step((2, 2), i))
    assert_rows_equal(cache, expected)
