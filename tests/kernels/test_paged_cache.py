"""Admission at prefill: the write kernels against the token-by-token reference, and exhaustion that loses nothing."""

from __future__ import annotations

import pytest
import torch
from paged_tools import EDGES, assert_same, clone, empty, filled, host, mask, random

from kvrepro.errors import InputError
from kvrepro.kernels.paged_cache import PAGE, PoolExhausted, allocate, prefill, prefill_reference, ring_pages


@pytest.mark.parametrize("kind", ["random", "all", "none", "one empty"])
@pytest.mark.parametrize("window", [16, 21, 64])
def test_prefill_equals_the_reference_in_any_chunks(kind, window):
    cache = empty(window, batch=2)
    expected = host(cache)
    for i, n in enumerate([37, 1, window, 70]):
        keys, values = (random((2, 2, n, 32), 10 * i + j) for j in (1, 2))
        admitted = mask(kind, 2, 2, n, i)
        prefill(cache, keys, values, admitted)
        prefill_reference(expected, keys.cpu(), values.cpu(), admitted.cpu())
        assert_same(cache, expected)


@pytest.mark.parametrize("n", EDGES)
def test_prefill_at_edge_lengths(n):
    cache, keys, values, admitted = filled(24, "random", n)
    expected = host(empty(24))
    prefill_reference(expected, keys.cpu(), values.cpu(), admitted.cpu())
    assert_same(cache, expected)


def test_keys_may_be_strided():
    keys, values = (random((1, 2, 50, 32), i).transpose(1, 2).contiguous().transpose(1, 2) for i in (1, 2))
    cache = empty(16)
    expected = clone(cache)
    prefill(cache, keys, values, mask("random", 1, 2, 50))
    prefill(expected, keys.contiguous(), values.contiguous(), mask("random", 1, 2, 50))
    assert_same(cache, expected)


def test_rows_hold_whole_pages_and_no_more():
    cache, _, _, admitted = filled(20, "random", 129, batch=2)
    lengths = admitted[..., :109].sum(-1)
    assert torch.equal(cache.lengths, lengths.int())
    held = (-(-lengths // PAGE) + ring_pages(20)).sum()
    assert int(cache.free_count) == cache.pool.shape[0] - int(held)


def test_an_exhausted_pool_is_named_before_anything_is_written():
    cache, *_ = filled(16, "all", 60, pages=12)
    before = clone(cache)
    with pytest.raises(PoolExhausted, match=r"4 free pages of 16 tokens and \d+ are wanted"):
        prefill(cache, random((1, 2, 90, 32), 1), random((1, 2, 90, 32), 2), mask("all", 1, 2, 90))
    assert_same(cache, before)


def test_a_full_page_table_is_named_before_anything_is_written():
    cache, *_ = filled(16, "all", 60, table=3)
    before = clone(cache)
    with pytest.raises(PoolExhausted, match="A page table holds 48 global entries and 64 are wanted"):
        prefill(cache, random((1, 2, 20, 32), 1), random((1, 2, 20, 32), 2), mask("all", 1, 2, 20))
    assert_same(cache, before)


@pytest.mark.parametrize(
    "change, message",
    [({"window": 0}, "window 0"), ({"head_dim": 48}, "head_dim 48"), ({"pages": 3}, "smaller than the local regions")],
)
def test_shapes_that_do_not_fit_are_named(change, message):
    good = {"rows": (2, 2), "head_dim": 32, "window": 16, "pages": 9, "table_pages": 4, "dtype": torch.float32}
    with pytest.raises(InputError, match=message):
        allocate(**good | change, device="cpu")
