"""Budgets and allocations, exact to the entry (GateSight §2, Appendices D, F and G), and end to end through a fork."""

from __future__ import annotations

from fractions import Fraction

import pandas as pd
import pytest
import torch

from kvrepro.benchmarks.example import Example, Question
from kvrepro.errors import InputError
from kvrepro.evaluate import protocol
from kvrepro.evaluate.arms import Arm
from kvrepro.evaluate.protocol import evaluate
from kvrepro.methods import eviction
from kvrepro.methods.allocation import RULES, allocate, keep_top, largest_remainder, per_head_budget, pyramid, ranked


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [65, 128, 1000])
@pytest.mark.parametrize("rule", RULES)
def test_totals_are_exact(rule, kept, n):
    draw = torch.Generator().manual_seed(n)
    weights = torch.rand(4, 3, generator=draw) ** 3
    scores = [torch.rand(3, n, generator=draw) ** (layer + 1) for layer in range(4)]
    counts = allocate(rule, kept, n, 10, 4, 3, weights, scores)
    assert counts.shape == (4, 3) and int(counts.sum()) == 4 * 3 * round(kept * (n - 10))
    assert (counts <= n - 10).all()
    if rule in ("flat", "gate_proportional", "pyramid"):
        assert (counts == counts[:, :1]).all(), "one count for all heads of a layer"
    elif kept < 1:
        assert (counts != counts[:, :1]).any()


@pytest.mark.parametrize("kept", [0.1, 0.33, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("n", [64, 65, 66, 67, 1000])
@pytest.mark.parametrize("protected", [0, 9, 12])
@pytest.mark.parametrize("rule", ["flat", "gate_proportional", "pyramid", "global"])
def test_blocks_are_whole_and_their_total_exact(rule, kept, n, protected):
    """Appendix H: heads of a layer together, so one count a layer; counts with the prefix are multiples of four."""
    draw = torch.Generator().manual_seed(n)
    weights, scores = torch.rand(4, 3, generator=draw) ** 3, [torch.rand(1, n, generator=draw) + x for x in range(4)]
    counts = allocate(rule, kept, n, protected, 4, 1, weights, scores, block=4)[:, 0]
    wanted = protected + round(kept * (n - protected))
    nearest = n if wanted == n else min(range(0, n + 1, 4), key=lambda whole: (abs(whole - wanted), -whole))
    assert int(counts.sum()) == 4 * (nearest - protected) and (counts >= 0).all() and (counts <= n - protected).all()
    assert wanted == n or ((counts + protected) % 4 == 0).all()
    if kept < 0.5 and n == 1000:
        assert rule == "flat" or (counts != counts[0]).any()


def test_blocks_by_hand():
    weights = torch.tensor([1.0, 2.0, 4.0])
    # 6 protected and 28 of 94: 34 becomes 36 a layer, so after 2 to fill the prefix 7 blocks a layer, 21 as 1 : 2 : 4
    assert allocate("gate_proportional", 0.3, 100, 6, 3, 1, weights, block=4)[:, 0].tolist() == [14, 26, 50]
    # the best 3 x 8 of all are 0, 10 and 14: 6 blocks as 0 : 2.5 : 3.5, of equal remainders the earlier layer's
    scores = [torch.zeros(1, 16), torch.zeros(1, 16), torch.zeros(1, 16)]
    scores[1][0, :10], scores[2][0, :14] = 1, 1
    assert allocate("global", 0.5, 16, 0, 3, 1, scores=scores, block=4)[:, 0].tolist() == [0, 12, 12]
    with pytest.raises(InputError, match="keeps nothing"):
        allocate("flat", 0.01, 100, 0, 3, 1, block=4)


def test_gate_proportional_by_hand():
    weights = torch.tensor([1.0, 2.0, 4.0])
    counts = allocate("gate_proportional", 0.1, 101, 1, 3, 1, weights)[:, 0]  # 30 entries: 4.29, 8.57, 17.14
    assert counts.tolist() == [4, 9, 17]
    counts = allocate("gate_proportional", 0.8, 101, 1, 3, 1, weights)[:, 0]  # 240: the last layer has only 100
    assert counts.tolist() == [47, 93, 100]


def test_a_layers_gate_is_the_mean_of_its_heads():
    per_head = torch.tensor([[1.0, 3.0], [5.0, 3.0]])
    got, want = (allocate("gate_proportional", 0.3, 101, 1, 2, 2, w) for w in (per_head, torch.tensor([2.0, 4.0])))
    assert torch.equal(got, want) and got.tolist() == [[20, 20], [40, 40]]


def test_gate_proportional_per_head_by_hand():
    gates = torch.tensor([[1.0, 3.0], [6.0, 2.0]])  # 120 entries: 10 to a unit
    assert allocate("gate_proportional_per_head", 0.3, 101, 1, 2, 2, gates).tolist() == [[10, 30], [60, 20]]
    # 240 entries: the third head has only 100, the others share 140 as 1 : 3 : 2
    assert allocate("gate_proportional_per_head", 0.6, 101, 1, 2, 2, gates).tolist() == [[23, 70], [100, 47]]


@pytest.mark.parametrize(
    ("k", "layers", "cap", "want"),
    [
        (100, 3, 1000, [195, 100, 5]),  # k_min 5, k_max 195
        (90, 4, 1000, [176, 119, 61, 4]),  # 175.5, 118.5, 61.5, 4.5: two left over, to the two earliest
        (20, 3, 1000, [37, 19, 4]),  # 39, 20, 1: three more for the last, taken as 35 : 16
        (80, 4, 100, [100, 100, 100, 20]),  # 156, 105.3, 54.7, 4: what does not fit goes on
        (3, 3, 1000, [3, 3, 3]),  # not enough for four a layer
        (7, 1, 10, [7]),
    ],
)
def test_pyramid_by_hand(k, layers, cap, want):
    assert pyramid(k, layers, cap) == want


@pytest.mark.parametrize("layers", [2, 6, 16])
def test_pyramid_against_the_schedule(layers):
    for k in range(1, 400, 7):
        got = pyramid(k, layers, 10 * k)
        assert sum(got) == layers * k and min(got) >= min(4, k) and got == sorted(got, reverse=True)
        if k >= 80:  # no layer falls below four, so every layer is within one entry of the schedule
            exact = [Fraction(39 * k, 20) - f * Fraction(38 * k, 20 * (layers - 1)) for f in range(layers)]
            assert all(abs(a - b) < 1 for a, b in zip(got, exact, strict=True))
            assert got == brute_largest_remainder(exact, layers * k, 10 * k)


def test_global_keeps_the_best_entries_of_the_whole_model():
    draw = torch.Generator().manual_seed(3)
    for protected in (0, 4):
        scores = [torch.randint(0, 6, (2, 30), generator=draw).float() for _ in range(3)]  # many ties
        counts = allocate("global", 0.4, 30, protected, 3, 2, scores=scores)
        kept = {
            tuple(x)
            for x in torch.stack(keep_top(ranked(scores, protected, "here"), counts, protected)).nonzero().tolist()
        }
        body = [(x, y, i) for x in range(3) for y in range(2) for i in range(protected, 30)]
        best = sorted(body, key=lambda e: (-scores[e[0]][e[1], e[2]].item(), e))[: 6 * round(0.4 * (30 - protected))]
        prefix = {(x, y, i) for x in range(3) for y in range(2) for i in range(protected)}
        assert kept == set(best) | prefix


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
        got = largest_remainder([Fraction(s) for s in shares.tolist()], total, cap)
        assert got == brute_largest_remainder(shares.tolist(), total, cap)


def test_shares_of_zero_take_what_no_other_can():
    assert largest_remainder([Fraction(0), Fraction(1), Fraction(0)], 7, 4) == [2, 4, 1]
    assert largest_remainder([Fraction(0)] * 3, 7, 4) == [3, 2, 2]


def test_a_budget_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="does not fit"):
        largest_remainder([Fraction(1)] * 3, 31, 10)


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
    with pytest.raises(InputError, match="needs a gate per KV head"):
        allocate("gate_proportional_per_head", 0.5, 100, 0, 2, 2, torch.ones(2))
    with pytest.raises(InputError, match="needs the scores"):
        allocate("global", 0.5, 100, 0, 2, 2)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_end_to_end(rule, tiny_hybrid, monkeypatch):
    """Children of the protocol hold, per layer and head, exactly the entries that were chosen, at their positions."""
    forked, real = [], protocol.fork

    def spy(lm, parent, kept):
        children = real(lm, parent, kept)
        for row, masks in enumerate(kept):
            for number, layer in enumerate(children.attention):
                for head, mask in enumerate(masks[number]):
                    where = mask.nonzero()[:, 0]
                    assert torch.equal(layer.positions[row, head, : len(where)], where)
                    assert torch.equal(layer.keys[row, head, : len(where)], parent.keys[number][head, where])
            forked.append(torch.stack([mask.sum(-1) for mask in masks]))
        return children

    monkeypatch.setattr(protocol, "fork", spy)
    method = eviction.build("keydiff")
    method.layer_weights = lambda prefill: torch.tensor([[0.1, 0.3], [0.6, 0.2]])
    context = " The grass is green. The sky is blue." * 10
    question = Question("\nWhat is blue?", ("sky",), 4)
    example = Example("ruler", "vt", 0, 1, "Remember this text.\n", context, (question,))
    arms = [Arm("keydiff", eviction=method, kept=kept, allocation=rule) for kept in (0.2, 1.0)]
    rows = pd.DataFrame(evaluate(tiny_hybrid, [example], arms, lambda *_: 0.0, {}, together=1))
    assert rows["ok"].all(), rows[["method", "budget", "failed_checks"]]
    pruned = rows[(rows["method"] == "keydiff") & (rows["budget"] == 0.2)].iloc[0]
    body = pruned.n_tokens - pruned.protected
    assert pruned.kept_entries == 4 * (round(0.2 * body) + pruned.protected)
    assert (forked[0] == forked[0][0, 0]).all() == (rule == "flat")


def test_keep_top_keeps_the_prefix_the_best_and_the_older_of_ties():
    scores = [torch.tensor([[0.0, 0.0, 3.0, 1.0, 3.0, 3.0], [9.0, 9.0, 1.0, 2.0, 3.0, 4.0]])]
    masks = keep_top(ranked(scores, 2, "here"), torch.tensor([[2, 1]]), 2)
    assert masks[0].tolist() == [[True, True, True, False, True, False], [True, True, False, False, False, True]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_stop_the_row(bad):
    scores = [torch.zeros(2, 5), torch.tensor([[0.0, bad, 0.0, 0.0, 0.0]] * 2)]
    with pytest.raises(InputError, match=r"ruler/vt item 3: scores of attention layer 1"):
        ranked(scores, 0, "ruler/vt item 3")
