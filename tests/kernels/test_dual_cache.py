"""The dual cache of a model: equal to the exact admitted cache, bytes, reservation, and Figure 4's accounting."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from paged_tools import DEVICE, mask, random

from kvrepro.cache.admitted import AdmittedLayer, Policy
from kvrepro.cache.dual import DualCache, pages_for
from kvrepro.cache.fragmentation import footprint
from kvrepro.cache.joined import JoinedLayer
from kvrepro.kernels.paged_cache import PoolExhausted
from kvrepro.kernels.ragged_decode import DecodePlan


def dual(window=20, pages=120, layers=2):
    return DualCache.allocate(
        layers=layers, batch=1, kv_heads=2, head_dim=32, window=window, pages=pages, tokens=300, dtype=torch.float32,
        device=DEVICE,
    )  # fmt: skip


@pytest.mark.parametrize("window", [16, 20])
def test_holds_and_attends_to_what_the_exact_cache_does(window):
    """Chunks, then single tokens, against cache/admitted.py."""
    cache = dual(window, layers=1)
    flags = mask("one empty", 1, 2, 150)
    flags[:, 0, ::11] = True
    lm = SimpleNamespace(geometry=SimpleNamespace(kv_heads=2, head_dim=32), dtype=torch.float32, device=DEVICE)
    before_rope = {}
    policy = Policy(window, lambda layer, pre, keys, positions: flags[..., positions].float())
    exact = AdmittedLayer(0, [policy], before_rope, lm)
    keys, values = random((1, 2, 150, 32), 1), random((1, 2, 150, 32), 2)
    at = 0
    for n in [60, 33, *[1] * 30]:
        new = slice(at, at + n)
        before_rope[0] = keys[:, :, new]
        handed_keys, handed_values = exact.update(keys[:, :, new], values[:, :, new])
        visible = exact.seen_by(n)[0][:, :, -1:]
        if n == 1:
            cache.append(0, keys[:, :, at], values[:, :, at], flags[..., at])
        else:
            cache.prefill(0, keys[:, :, new], values[:, :, new], flags[..., new])
        at += n
        assert torch.equal(cache.entries()[0], exact.entries())
    for head in range(2):
        count = int(exact.entries()[0, head])
        held_keys, held_values = cache.contents(0, 0, head)
        assert torch.equal(held_keys, exact.keys[0, head, :count])
        assert torch.equal(held_values, exact.values[0, head, :count])
    q = random((1, 4, 32), 3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None].double(),
        *(x.double().repeat_interleave(2, 1) for x in (handed_keys, handed_values)),
        visible.repeat_interleave(2, 1),
    )[:, :, 0]
    out = cache.attend(0, q, plan=DecodePlan(block=32))
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_whole_answer_reads_what_the_evaluation_reads():
    """cache/joined.py hides what leaves its window unadmitted, and promotion moves what is admitted."""
    cache, window = dual(20, layers=1), 20
    flags = mask("one empty", 1, 2, 150)
    flags[:, 0, ::7] = True
    lm = SimpleNamespace(geometry=SimpleNamespace(kv_heads=2, head_dim=32), dtype=torch.float32, device=DEVICE)
    before_rope = {}
    policy = Policy(window, lambda layer, pre, keys, positions: flags[..., positions.flatten()].float())
    exact = AdmittedLayer(0, [policy], before_rope, lm)
    keys, values, queries = (random((1, heads, 150, 32), seed) for seed, heads in ((1, 2), (2, 2), (3, 4)))
    before_rope[0] = keys[:, :, :90]
    exact.update(keys[:, :, :90], values[:, :, :90])
    cache.prefill(0, keys[:, :, :90], values[:, :, :90], flags[..., :90])
    joined = JoinedLayer(0, [exact], 60, before_rope)
    for at in range(90, 150):
        before_rope[0] = keys[:, :, at : at + 1]
        held_keys, held_values = joined.update(keys[:, :, at : at + 1], values[:, :, at : at + 1])
        cache.append(0, keys[:, :, at], values[:, :, at], flags[..., at])
        visible = joined.seen_by(1)[0]
        assert torch.equal(cache.entries()[0], visible[:, :, 0].sum(-1))
        expected = torch.nn.functional.scaled_dot_product_attention(
            queries[:, :, at : at + 1].double(),
            *(x.double().repeat_interleave(2, 1) for x in (held_keys, held_values)),
            visible.repeat_interleave(2, 1),
        )[:, :, 0]
        if at % 7 == 0:
            out = cache.attend(0, queries[:, :, at], plan=DecodePlan(block=32))
            torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_layers_share_the_pool_and_bytes_are_counted():
    cache = dual()
    for layer, kind in enumerate(("all", "none")):
        cache.prefill(layer, random((1, 2, 100, 32), 1), random((1, 2, 100, 32), 2), mask(kind, 1, 2, 100))
    assert cache.entries().flatten().tolist() == [100, 100, 20, 20]
    pages = pages_for(cache.rows.lengths, 20)
    assert pages == 2 * (2 + 5) + 2 * 2
    assert cache.bytes_held() == pages * 16 * 2 * 32 * 4 + cache.rows.tables.numel() * 4
    cache.append_all(
        random((2, 1, 2, 32), 3), random((2, 1, 2, 32), 4), torch.ones(2, 1, 2, dtype=torch.bool, device=DEVICE)
    )
    assert cache.entries().flatten().tolist() == [101, 101, 20, 20]
    cache.compact(0, torch.zeros(1, 2, 90, dtype=torch.bool, device=DEVICE))
    assert cache.entries().flatten().tolist() == [20] * 4
    assert cache.bytes_held() == 8 * 16 * 2 * 32 * 4 + cache.rows.tables.numel() * 4


def test_reservation_and_the_report_of_a_step_that_found_no_page():
    cache = dual(window=16, pages=8, layers=1)
    cache.prefill(0, random((1, 2, 48, 32), 1), random((1, 2, 48, 32), 2), mask("all", 1, 2, 48))
    cache.reserve(16)
    with pytest.raises(PoolExhausted, match="enlarge the pool"):
        cache.reserve(17)
    cache.check()
    new = random((1, 2, 32), 5), random((1, 2, 32), 6), mask("all", 1, 2, 1)[..., 0]
    for _ in range(17):
        cache.append(0, *new)
    with pytest.raises(PoolExhausted, match="found no free page"):
        cache.check()
    assert cache.entries().flatten().tolist() == [64, 64]
    cache.check()  # reported once


def test_footprints_of_the_three_ways():
    found = footprint(torch.tensor([[0, 16], [17, 100]]), tokens=1000, window=20, head_dim=4, element=2)
    entry = 16
    assert found.entries == (133 + 4 * 20) * entry
    assert found.paged == (4 * 2 + 0 + 1 + 2 + 7) * (16 * entry + 4)
    assert found.preallocated == 4 * 1000 * entry
    assert found.reallocated == (0 + 16 + 32 + 128 + 4 * 20) * entry
    assert found.reallocated_peak == found.reallocated + 64 * entry
    assert found.reallocated_copied == (16 + (16 + 32 + 64)) * entry
    assert found.waste("preallocated") == 1 - 213 / 4000


def test_paged_wastes_least_on_a_long_context():
    lengths = torch.randint(0, 4000, (32, 8), generator=torch.Generator().manual_seed(0))
    found = footprint(lengths, tokens=8000, window=256, head_dim=128, element=2)
    assert found.waste("paged") < 0.01
    assert found.waste("reallocated") > 0.1
    assert found.waste("preallocated") > 0.5
