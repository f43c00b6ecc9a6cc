"""Budgets and allocations, exact to the entry (GateSight §2, Appendix G)."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from kvrepro.errors import InputError
from kvrepro.methods.allocation import allocate, keep_top, largest_remainder, per_head_budget


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [65, 128, 1000])
def test_totals_are_exact(kept, n):
    weights = torch.tensor([0.02, 0.4, 0.11, 0.3])
    want = 4 * 3 * round(kept * (n - 10))
    for rule in ("flat", "gate_proportional"):
        counts = allocate(rule, kept, n, 10, 4, 3, weights)
        assert counts.shape == (4, 3) and int(counts.sum()) == want
        assert (counts <= n - 10).all() and (counts == counts[:, :1]).all()


def test_gate_proportional_by_hand():
    weights = torch.tensor([1.0, 2.0, 4.0])
    counts = allocate("gate_proportional", 0.1, 101, 1, 3, 1, weights)[:, 0]  # 30 entries: 4.29, 8.57, 17.14
    assert counts.tolist() == [4, 9, 17]
    counts = allocate("gate_proportional", 0.8, 101, 1, 3, 1, weights)[:, 0]  # 240: the last layer has only 100
    assert counts.tolist() == [47, 93, 100]


def brute_largest_remainder(shares, total, cap):
    """With exact fractions: cap, share out the rest, floor, then the largest remainders one by one."""
    shares, counts, free = [Fraction(s) for s in shares], [0] * len(shares), set(range(len(shares)))
    while True:
        left = total - sum(counts[i] for i in range(len(shares)) if i not in free)
        exact = {i: shares[i] * left / sum(shares[j] for j in free) for i in free}
        over = {i for i in free if exact[i] > cap}
        if not over:
            break
        for i in over:
            counts[i] = cap
        free -= over
    for i in free:
        counts[i] = exact[i].__floor__()
    order = sorted((i for i in free if counts[i] < cap), key=lambda i: (-(exact[i] - counts[i]), i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def test_largest_remainder_against_exact_fractions():
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        shares = torch.randint(1, 50, (6,), generator=draw)
        cap = int(torch.randint(5, 60, (1,), generator=draw))
        total = int(torch.randint(1, 6 * cap + 1, (1,), generator=draw))
        got = largest_remainder(shares.float(), total, cap)
        assert got.tolist() == brute_largest_remainder(shares.tolist(), total, cap)


def test_a_budget_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="does not fit"):
        largest_remainder(torch.ones(3), 31, 10)


@pytest.mark.parametrize("kept", [0.0, -0.1, 1.01])
def test_kept_fractions_outside_the_range_are_refused(kept):
    with pytest.raises(InputError, match="outside"):
        per_head_budget(kept, 100, 0)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(InputError, match="keeps nothing"):
        per_head_budget(0.001, 100, 0)


def test_allocation_errors():
    with pytest.raises(InputError, match="did you mean 'flat'"):
        allocate("flta", 0.5, 100, 0, 2, 2)
    with pytest.raises(InputError, match="output gate"):
        allocate("gate_proportional", 0.5, 100, 0, 2, 2, None)


def test_keep_top_keeps_the_prefix_the_best_and_the_older_of_ties():
    scores = [torch.tensor([[0.0, 0.0, 3.0, 1.0, 3.0, 3.0], [9.0, 9.0, 1.0, 2.0, 3.0, 4.0]])]
    masks = keep_top(scores, torch.tensor([[2, 1]]), 2, "here")
    assert masks[0].tolist() == [[True, True, True, False, True, False], [True, True, False, False, False, True]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_stop_the_row(bad):
    scores = [torch.zeros(2, 5), torch.tensor([[0.0, bad, 0.0, 0.0, 0.0]] * 2)]
    with pytest.raises(InputError, match=r"ruler/vt item 3: scores of attention layer 1"):
        keep_top(scores, torch.ones(2, 2, dtype=torch.long), 0, "ruler/vt item 3")
