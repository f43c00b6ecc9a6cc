"""Queries on the observations, windows, lengths, gates and budgets, over synthetic rows with known values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from synthetic_observations import ATTENTION, GDN, HEADS, KEPT, RULES, WINDOWS, cell, life, observation_rows
from synthetic_rows import predictor_rows

from kvrepro.analysis import observed
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.queries import ask


@pytest.fixture(scope="module")
def evidence():
    return Evidence("lab-hybrid", pd.concat([observation_rows(), predictor_rows()], ignore_index=True))


LIVES = [life(layer, head) for layer in GDN for head in range(HEADS)]
MULTIKEY = {"documents": "ruler_8K", "task": "niah_multikey_3"}
GAIN = {w: 0.01 - 0.03 / w for w in WINDOWS}


def rule(name: str, *kept: float) -> float:
    """Mean accuracy in percent of a budget rule in the rows, of 20 items."""
    return float(np.mean([100 * round(20 * (RULES[name] + (1 - RULES[name]) * (k - 0.05) / 0.95)) / 20 for k in kept]))


EXPECTED = [
    ("shape", {"quantity": "parameters"}, 3.4),
    ("shape", {"quantity": "cache_per_token"}, 64),
    ("cache_passes_state", {}, 2.304),
    ("cache_over_state", {"tokens": 100_000}, 100_000 / 2304),
    ("half_life", {"statistic": "span"}, max(LIVES) / min(LIVES)),
    ("half_life", {"statistic": "layer_span"}, 1000),
    ("slow_heads", {"threshold": 1000}, sum(x >= 1000 for x in LIVES)),
    ("slow_set_overlap", {"threshold": 1000}, 0.8),
    ("static_correlation", {}, 1),
    ("write_share", {"effect": "head"}, 70),
    ("slow_heads_write", {}, -0.6),
    ("decile_share", {"end": "top"}, 1000 / 55),
    ("decile_share", {"end": "bottom"}, 1000 / 55),
    ("cells_above", {"threshold": 0.1, "layer": 15}, 25),
    ("cells_above", {"threshold": 0.1, "statistic": "min"}, 25),
    ("strongest_cell", {}, max(cell(x, x - 1, 3) for x in ATTENTION)),
    ("best_layer", {"layer": 47}, 28),
    ("best_layer", {"layer": 15}, 14),
    ("best_layers", {}, 8),
    ("window_cost", {}, 0.2),
    ("length_value", {"predictor": "mlp", "metric": "overlap@10", "documents": "2K"}, 50),
    ("length_cell", {"cell": "write 4K", "metric": "spearman"}, 0.3),
    ("length_task", MULTIKEY | {"predictor": "mlp", "metric": "overlap@10"}, 60),
    ("window_value", {"window": 9, "metric": "inputs"}, 1299),
    ("window_cell", {"cell": "overlap_10 3"}, 40),
    ("window_step", {"step": "12 over 6", "metric": "spearman"}, GAIN[12] - GAIN[6]),
    ("window_gain", {"window": 9, "base": 6, "metric": "overlap@10"}, 100 * (GAIN[9] - GAIN[6])),
    ("window_gain_per_layer", {"step": "to_6", "metric": "overlap@10"}, 100 * (GAIN[6] - GAIN[3]) / 3),
    ("window_parameters", {"window": 9, "base": 6}, 1299 / 867),
    ("gated_ranking", {}, 0.99),
    ("closing_ratio", {}, 3),
    ("closed_layers", {"without": "without 3 7 11 23", "length": 8192}, 40),
    ("closed_layers_loss", {}, -5),
    ("gate_in_score", {}, 0),
    ("budget_cell", {"cell": "per_layer 0.1"}, rule("gate_proportional", 0.1)),
    ("budget_by_layer", {"kept": 0.2}, rule("gate_proportional", 0.2) - rule("per_head", 0.2)),
    ("exponent_value", {"exponent": "0.5", "kept": 0.05}, 65),
    ("allocation_value", {"allocation": "flat", "kept": "mean", "benchmark": "ruler"}, rule("flat", *KEPT[1:])),
    ("allocation_lead", {"benchmark": "scbench"},
     min(rule("gate_proportional", k) - rule("flat", k) for k in KEPT[1:])),
    ("allocation_lead_over", {"benchmark": "scbench", "task": "kv", "base": "pyramid"},
     rule("gate_proportional", *KEPT[1:]) - rule("pyramid", *KEPT[1:])),
    ("allocation_gap", {"base": "flat", "kept": 0.1, "benchmark": "ruler"},
     rule("gate_proportional", 0.1) - rule("flat", 0.1)),
    ("allocation_spread", {"task": "qa_eng", "benchmark": "scbench"},
     rule("gate_proportional", *KEPT[1:]) - rule("pyramid", *KEPT[1:])),
    ("allocation_totals", {}, 0),
    ("predictor_layers", {"predictor": "write_slow", "metric": "spearman", "statistic": "max"}, 0.45 + 0.02),
    ("predictor_layers", {"predictor": "write_slow", "metric": "spearman", "statistic": "min", "last": 2}, 0.45),
    ("summaries_end", {"statistic": "min"}, 4 / 20 + 0.01),
]  # fmt: skip


@pytest.mark.parametrize(("function", "parameters", "expected"), EXPECTED)
def test_queries(evidence, function, parameters, expected):
    found = ask(evidence, function, parameters)
    assert float(found.value) == pytest.approx(expected, abs=0.011 if abs(expected) < 1 else 0.011 * abs(expected))
    assert found.low <= found.value + 1e-9 and found.value <= found.high + 1e-9


def test_the_median_half_life_lies_between_the_middle_heads(evidence):
    found = ask(evidence, "half_life", {"statistic": "median"})
    assert found.value == pytest.approx(np.median(LIVES), rel=0.02)


def test_heads_slow_in_nearly_all_documents_in_hardly_any_and_in_between(evidence):
    counts = {
        part: ask(evidence, "slow_in_documents", {"threshold": 1010, "part": part}).value
        for part in ("slow", "fast", "between")
    }
    documents = observed.document_half_lives(evidence.rows).to_numpy() >= 1010
    share = documents.mean(0)
    assert counts["slow"] == (share >= 0.95).sum() and counts["fast"] == (share <= 0.05).sum()
    assert counts["between"] == ((share > 0.05) & (share < 0.95)).sum() > 0
    assert sum(counts.values()) == len(LIVES)


def test_slow_heads_are_counted_over_all_documents_and_their_interval_over_those_analysed(evidence):
    rows = evidence.rows.copy()
    measured = (rows["experiment"] == "half_lives") & (rows["method"] == "measured")
    rows.loc[measured, "value"] /= 100  # in the analysed documents no head is slow
    found = ask(Evidence("lab-hybrid", rows), "slow_heads", {"threshold": 1000})
    assert found.value == sum(x >= 1000 for x in LIVES) > 0 and found.low == found.high == 0


def test_order_stability_is_a_percentile_of_pairs(evidence):
    values = observed.stability(evidence.rows, "write")
    found = ask(evidence, "order_stability", {"signal": "write", "percentile": 10})
    assert found.value == pytest.approx(np.percentile(values, 10)) and found.units == 12


def test_the_static_correlation_is_spearmans(evidence):
    rows = evidence.rows.copy()
    static = (rows["experiment"] == "half_lives") & (rows["method"] == "static")
    rows.loc[static, "value"] = np.random.default_rng(0).permutation(rows.loc[static, "value"].to_numpy())
    lives = observed.half_lives(rows)
    found = ask(Evidence("lab-hybrid", rows), "static_correlation", {})
    assert found.value == pytest.approx(spearmanr(lives["static"], lives["median"]).statistic)


def test_appendix_d_is_judged_on_contexts_of_its_own_where_there_are_any(evidence):
    own = evidence.rows[evidence.rows["experiment"] == "budgets"].assign(experiment="long_budgets")
    own = own.assign(value=own["value"].where(own["method"] != "per_head", 0.0))
    both = Evidence("lab-hybrid", pd.concat([evidence.rows, own], ignore_index=True))
    at, flat = {"cell": "per_head 0.1"}, {"allocation": "flat", "kept": 0.1, "benchmark": "ruler"}
    assert ask(evidence, "budget_cell", at).value > ask(both, "budget_cell", at).value == 0
    assert ask(both, "budget_by_layer", {"kept": 0.1}).value == pytest.approx(rule("gate_proportional", 0.1))
    zero = own.assign(value=0.0)
    only = Evidence("lab-hybrid", pd.concat([evidence.rows, zero], ignore_index=True))
    assert ask(only, "allocation_value", flat).value == pytest.approx(rule("flat", 0.1))  # Table 4 is on the others


def test_the_lead_on_a_task_is_over_the_largest_of_the_others(evidence):
    parameters = {"a": "mlp", "b": "write_slow", "metric": "overlap@10", "documents": "ruler_8K"}
    assert ask(evidence, "length_task_lead", parameters | {"task": "niah_multikey_3"}).value == pytest.approx(10)
    assert ask(evidence, "length_task_lead", parameters | {"task": "vt"}).value == pytest.approx(-10)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("length_value", {"predictor": "mlp", "metric": "spearman", "documents": "16K"}),
        ("window_value", {"window": 24, "metric": "spearman"}),
        ("best_layer", {"layer": 5}),
        ("slow_set_overlap", {"threshold": 17}),
        ("budget_cell", {"cell": "flat 0.33"}),
        ("budget_cell", {"cell": "flat 0.1", "length": 128}),
        ("closed_layers", {"without": "without 3"}),
    ],
)
def test_what_the_rows_cannot_answer(evidence, function, parameters):
    with pytest.raises(NoRows):
        ask(evidence, function, parameters)


def test_without_rows_of_an_experiment_nothing_is_answered(evidence):
    empty = Evidence("lab-hybrid", predictor_rows())
    for function, parameters, _ in EXPECTED:
        if function not in ("predictor_layers", "summaries_end"):
            with pytest.raises(NoRows):
                ask(empty, function, parameters)


def test_a_window_that_holds_every_best_layer_costs_nothing_and_is_not_judged(evidence):
    rows = evidence.rows[~evidence.rows["options"].str.contains('"in_window": false')]
    with pytest.raises(NoRows, match="outside its window"):
        ask(Evidence("lab-hybrid", rows), "window_cost", {})
