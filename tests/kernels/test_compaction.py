"""Compaction: the gather in place and the release of pages against the reference."""

from __future__ import annotations

import pytest
import torch
from paged_tools import DEVICE, EDGES, assert_same, filled, generator, host, mask, random

from kvrepro.kernels.compaction import compact, compact_reference
from kvrepro.kernels.paged_cache import PAGE, prefill
from kvrepro.kernels.ragged_decode import ragged_decode_attention, ragged_decode_attention_reference


def assert_same_rows(a, b):
    """Equal rows; the free list is compared as a set, since rows return pages in any order on a GPU."""
    a, b = host(a), host(b)
    free = int(a.free_count)
    assert free == int(b.free_count)
    assert sorted(a.free_pages[:free].tolist()) == sorted(b.free_pages[:free].tolist())
    a.free_pages.copy_(b.free_pages)
    assert_same(a, b)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.7, 1.0])
@pytest.mark.parametrize("n", EDGES)
def test_compaction_equals_the_reference(share, n):
    cache, *_ = filled(21, "one empty", n, batch=2)
    kept = (torch.rand(2, 2, 130, generator=generator(n)) < share).to(
        DEVICE
    )  # flags past a row's length count for nothing
    expected = host(cache)
    compact(cache, kept)
    compact_reference(expected, kept.cpu())
    assert_same_rows(cache, expected)


def test_released_pages_serve_the_next_tokens_and_attention():
    cache, *_ = filled(16, "all", 16 + 160, pages=22)
    assert int(cache.free_count) == 0
    kept = torch.zeros(1, 2, 160, dtype=torch.bool, device=DEVICE)
    kept[..., ::5] = True
    compact(cache, kept)
    assert int(cache.free_count) == 2 * (10 - -(-32 // PAGE))
    prefill(cache, random((1, 2, 100, 32), 7), random((1, 2, 100, 32), 8), mask("all", 1, 2, 100))
    held = [set(row[1 : 1 + 9].tolist()) for row in cache.tables[0]]
    assert len(held[0] | held[1]) == 18  # no page serves two rows
    q = random((1, 4, 32), 5)
    out, expected = ragged_decode_attention(q, cache), ragged_decode_attention_reference(q, cache)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
