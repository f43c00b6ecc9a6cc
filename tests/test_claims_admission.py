"""Queries on admission over synthetic rows with known cache sizes, scores and losses, and what rows do not answer."""

from __future__ import annotations

import pandas as pd
import pytest
from synthetic_admission import DECIDED, admission_rows, local_cache_rows, pattern_rows, validation_rows

from kvrepro.benchmarks.helmet import TASKS
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.ledger import claims
from kvrepro.claims.queries import ask
from kvrepro.claims.report import Measured, judge
from kvrepro.claims.verdicts import verdict

HELMET = {"benchmark": "helmet"}
SUMMARIES = ["infbench_sum_eng", "multi_lexsum"]
BOTH = {"a": "wg_kv+quest", "b": "quest", "benchmark": "ruler"}


@pytest.fixture(scope="module")
def evidence():
    rows = [
        admission_rows("helmet", tasks=TASKS),
        admission_rows("ruler", items=10),
        local_cache_rows(),
        pattern_rows(),
    ]
    return Evidence("lab-dense", pd.concat(rows, ignore_index=True))


@pytest.mark.parametrize(
    ("function", "parameters", "expected"),
    [
        ("score_at_size", {"method": "wg_kv", "size": 0.25, **HELMET}, 93.75),
        ("score_at_size", {"method": "duo_attention", "size": 0.25, **HELMET}, 75),
        ("score_at_size", {"method": "local_attention", "size": 0.25, **HELMET}, 56.25),
        ("score_at_size", {"method": "local_attention", "size": 0.098, **HELMET}, 25),  # within a rounding of 0.1
        ("score_kept_at_size", {"method": "wg_kv", "size": 0.25, **HELMET}, 0.9375),
        ("score_kept_at_size", {"method": "wg_kv", "size": 0.1, **HELMET, "tasks": "msmarco_rerank_psg"}, 0.75),
        ("score_kept_at_size", {"method": "duo_attention", "size": 0.2, **HELMET, "tasks": SUMMARIES}, 0.75),
        ("smallest_lead", {"a": "wg_kv", "b": "local_attention", "below": 0.4, **HELMET}, 25),  # at 0.4
        ("smallest_lead", {"a": "wg_kv", "b": "duo_attention", "below": 0.4, **HELMET}, 12.5),  # at 0.2
        ("smallest_lead", {"a": "local_attention", "b": "wg_kv", "below": 0.4, **HELMET}, -50),
        ("admitted_share", {"method": "wg_kv", "benchmark": "ruler"}, 0.6),
        ("admitted_share", {"method": "local_attention", "benchmark": "ruler"}, 1),
        ("admitted_share", {"method": "quest", "benchmark": "ruler"}, 1),
        ("left_out", {"method": "wg_kv+quest", "benchmark": "ruler"}, 70),
        ("selection_gap", {"a": "wg_kv+quest", "b": "quest", **HELMET}, 25),  # the first of two that are as far
        ("selection_cost", {"quantity": "bytes", **BOTH}, 0.3),
        ("selection_cost", {"quantity": "candidates", **BOTH}, (0.3 - 32 / 1004.5) / (1 - 32 / 1004.5)),
        ("growth_ratio", {"quantity": "attended"}, 0.75),
        ("growth_ratio", {"quantity": "evictions"}, 0.25),
        ("growth_ratio", {"quantity": "first_eviction"}, 2),
        ("distant_attention_share", {}, 0.8),
        ("crosswise_pairs", {}, 40),
        ("transient_attention", {}, 3),
        ("head_size_ratio", {"a": "html_to_tsv", "b": "code", "statistic": "mean"}, 0.5),
        ("head_size_ratio", {"a": "code", "b": "html_to_tsv", "statistic": "variation"}, 0.2020 / 0.9147),
        ("head_size_span", {"of": "heads"}, (0.7 / 0.5 + 0.2 / 0.2) / 2),  # in the second layer
        ("head_size_span", {"of": "layers"}, (0.8 / 0.6 + 0.5 / 0.2) / 2),
        ("entries_per_token", {}, 1),
        ("gate_identity", {"check": "closed_gate"}, 8e-6),
        ("gate_identity", {"check": "misplaced_after_decoding"}, 0),
        ("neighbouring_heads", {}, (0.2 + 0.8) / 2),  # in the first layer, mean over both kinds
        ("lambda_effect", {"quantity": "size"}, 0.18),
        ("lambda_effect", {"quantity": "loss"}, 0.01 / 0.36 - 0.01 / 0.72),
        ("threshold_excess", {}, 1),
        ("local_cache_loss", {"quantity": "ratio"}, 3),
        (
            "local_cache_loss",
            {"quantity": "widening"},
            2 * (0.12 - 0.01 / 0.72),
        ),  # sizes 0.1 and 0.76
        ("gates_decided", {}, min(DECIDED.values())),
    ],
    ids=str,
)
def test_queries(evidence, function, parameters, expected):
    found = ask(evidence, function, parameters)
    assert found.value == pytest.approx(expected, rel=0.01)
    assert found.low <= found.value + 1e-9 and found.high >= found.value - 1e-9 and found.units >= 10


def test_of_several_settings_the_one_with_the_most_is_what_a_selection_costs():
    """A second lambda holds half, wherever its rows stand; numbers of selected entries change nothing."""
    rows = admission_rows("ruler")
    own = rows["method"].str.startswith("wg_kv+quest")
    half = rows[own].assign(
        method="wg_kv+quest@trade_off=0.64" + rows.loc[own, "method"].str.removeprefix("wg_kv+quest")
    )
    half = half.assign(bytes_held=half["bytes_held"] // 2, kept_entries=half["kept_entries"] // 2)
    for several in ([rows, half], [half, rows]):
        found = Evidence("lab-dense", pd.concat(several, ignore_index=True))
        assert ask(found, "selection_cost", {"quantity": "bytes", **BOTH}).value == pytest.approx(0.3, rel=0.01)
        candidates = ask(found, "selection_cost", {"quantity": "candidates", **BOTH}).value
        assert candidates == pytest.approx((0.3 - 32 / 1004.5) / (1 - 32 / 1004.5), rel=0.01)


@pytest.mark.parametrize(
    ("function", "parameters", "expected"),
    [
        ("admitted_share", {"method": "wg_kv", "benchmark": "ruler"}, (0.6 + 0.2 + 0.2) / 3),
        ("left_out", {"method": "wg_kv+quest", "benchmark": "ruler"}, 100 * (1 - (0.3 + 0.1 + 0.1) / 3)),
        ("selection_cost", {"quantity": "bytes", **BOTH}, (0.3 + 0.1 + 0.1) / 3),
        ("cache_share", {"method": "local_attention", "kept": 0.4, "benchmark": "ruler"}, (0.4 + 0.4 / 3 * 2) / 3),
    ],
    ids=str,
)
def test_a_task_with_more_contexts_weighs_no_more(function, parameters, expected):
    """The first of three tasks has 40 contexts, each of the others 10, of which methods hold a third as much."""
    rows = admission_rows("ruler", items=40)
    rows = rows[(rows["task"] == rows["task"].iloc[0]) | (rows["item"] < 10)].copy()
    less = (rows["task"] != rows["task"].iloc[0]) & (rows["method"] != "dense")
    less &= ~rows["method"].str.startswith("quest")
    for column in ("kept_entries", "bytes_held"):
        rows.loc[less, column] = (rows.loc[less, column] / 3).round().astype(int)
    found = ask(Evidence("lab-dense", rows), function, parameters)
    assert found.value == pytest.approx(expected, rel=0.005) and found.units == 10
    assert found.high - found.low < 0.01 * found.value  # each task is of one size: resampled within it, nothing changes


def test_contexts_that_repeat_a_question_are_one():
    rows = admission_rows("ruler")
    rows["kept_entries"] *= rows["item"].map(lambda item: 1 if item % 2 else 2).where(rows["method"] != "dense", 1)
    asked = {"method": "local_attention", "benchmark": "ruler"}
    once = ask(Evidence("lab-dense", rows), "admitted_share", asked)
    first = rows.assign(item=2 * rows["item"], unit=2 * rows["item"])
    twice = pd.concat([first, first.assign(item=first["item"] + 1)], ignore_index=True)
    found = ask(Evidence("lab-dense", twice), "admitted_share", asked)
    assert (found.value, found.low, found.high, found.units) == (once.value, once.low, once.high, once.units)
    assert found.low < found.value < found.high


def test_contexts_that_no_two_methods_hold_say_nothing():
    rows = admission_rows("ruler")
    rows.loc[(rows["method"] == "dense") != (rows["item"] < 6), "ok"] = False
    for function, parameters in (
        ("admitted_share", {"method": "wg_kv", "benchmark": "ruler"}),
        ("cache_share", {"method": "local_attention", "kept": 0.4, "benchmark": "ruler"}),
    ):
        with pytest.raises(NoRows, match="has no value"):
            ask(Evidence("lab-dense", rows), function, parameters)


def test_the_full_cache_is_the_measure_of_a_score(evidence):
    rows = evidence.rows.copy()
    rows.loc[(rows["method"] == "dense") & (rows["item"] >= 6), "value"] = 0.0
    found = ask(Evidence("lab-dense", rows), "score_kept_at_size", {"method": "wg_kv", "size": 0.25, **HELMET})
    assert found.value == pytest.approx(2 * 0.9375, rel=0.01)


def test_a_threshold_off_the_frontier_is_found(evidence):
    rows = validation_rows()
    off = rows["options"].str.contains('"threshold": 0.1,') & (rows["metric"] == "distillation_loss")
    assert off.sum() == 2 * 12 * 3
    rows.loc[off, "value"] *= 1.5
    found = ask(Evidence("lab-dense", rows), "threshold_excess", {})
    mixture = 1.2 * (1 / 0.1 + (1 / 0.19 - 1 / 0.1) * 8 / 9)  # of sizes 0.1 and 0.19, which hold 0.18
    assert found.value == pytest.approx(1.5 / 0.18 / mixture)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("score_at_size", {"method": "wg_kv", "size": 0.05, **HELMET}),
        ("score_at_size", {"method": "wg_kv", "size": 0.7, **HELMET}),
        ("score_at_size", {"method": "kvzip", "size": 0.2, **HELMET}),
        ("score_at_size", {"method": "wg_kv", "size": 0.25, "benchmark": "scbench"}),
        ("smallest_lead", {"a": "wg_kv", "b": "local_attention", "below": 0.09, **HELMET}),
        ("admitted_share", {"method": "kvzip", "benchmark": "ruler"}),
        ("selection_gap", {"a": "wg_kv+quest", "b": "kvzip", **HELMET}),
        ("selection_gap", BOTH | {"benchmark": "scbench"}),
        ("selection_cost", BOTH | {"b": "kvzip", "quantity": "bytes"}),
        ("selection_cost", BOTH | {"b": "wg_kv", "quantity": "candidates"}),  # selects nothing
        ("head_size_ratio", {"a": "html_to_tsv", "b": "vt", "statistic": "mean"}),
    ],
    ids=str,
)
def test_rows_that_do_not_answer(evidence, function, parameters):
    with pytest.raises(NoRows):
        ask(evidence, function, parameters)


def test_a_mean_over_a_benchmark_wants_all_of_its_tasks(evidence):
    some = Evidence("lab-dense", evidence.rows[evidence.rows["task"] != "nlu"])
    for function, parameters in (
        ("selection_gap", {"a": "wg_kv+quest", "b": "quest", **HELMET}),
        ("score_at_size", {"method": "wg_kv", "size": 0.25, **HELMET}),
    ):
        with pytest.raises(NoRows, match="tasks nlu"):
            ask(some, function, parameters)


def test_a_cache_that_is_never_full_says_nothing_of_evictions():
    rows = pattern_rows()
    rows.loc[rows["metric"] == "evictions", "value"] = 0.0
    with pytest.raises(NoRows, match="longer documents"):
        ask(Evidence("lab-dense", rows), "growth_ratio", {"quantity": "attended"})


def test_the_most_that_a_bounded_cache_held_counts_failed_answers_too():
    rows = admission_rows("reasoning", tasks=("registers",))
    own = rows[rows["method"] == "dense"].assign(
        method="snapkv@budget=100", options='{"bounding": {"method": "snapkv", "budget": 100}}', peak_entries=550.0
    )
    own.loc[own["item"] == 3, ["peak_entries", "ok"]] = [630, False]
    evidence = Evidence("lab-dense", pd.concat([rows, own], ignore_index=True))
    found = ask(evidence, "peak_over_budget", {"method": "snapkv", "benchmark": "reasoning"})
    assert found.value == pytest.approx(630 / (6 * 100))
    with pytest.raises(NoRows):
        ask(evidence, "peak_over_budget", {"method": "wg_kv+snapkv", "benchmark": "reasoning"})


@pytest.mark.parametrize("function", ["distant_attention_share", "transient_attention", "neighbouring_heads"])
def test_patterns_that_were_not_measured(function):
    with pytest.raises(NoRows):
        ask(Evidence("lab-dense", admission_rows()), function, {})


def test_without_gates_of_both_kinds_or_a_common_size_nothing_is_said_of_the_local_cache():
    apart = [validation_rows(), validation_rows(lambdas=(0.64,), thresholds=(0.1,), window=1).assign(budget=0.9)]
    for rows in (validation_rows(), pd.concat(apart)):
        with pytest.raises(NoRows):
            ask(Evidence("lab-dense", rows), "local_cache_loss", {"quantity": "ratio"})


def test_one_lambda_or_one_threshold_answers_nothing_about_several():
    one = Evidence("lab-dense", validation_rows(lambdas=(0.02,)))
    with pytest.raises(NoRows):
        ask(one, "lambda_effect", {"quantity": "size"})
    for thresholds in ((0.1,), (0.05, 0.5)):
        with pytest.raises(NoRows):
            ask(Evidence("lab-dense", validation_rows(thresholds=thresholds)), "threshold_excess", {})
    with pytest.raises(NoRows):
        ask(Evidence("lab-dense", validation_rows(thresholds=(0.5,))), "gates_decided", {})


def test_a_task_that_lacks_or_is_not_answered_judges_nothing(evidence):
    rows = evidence.rows
    without = Evidence("lab-dense", rows[rows["task"] != "nlu"])
    with pytest.raises(NoRows, match="nlu"):
        ask(without, "score_at_size", {"method": "wg_kv", "size": 0.25, **HELMET})
    zero = rows.assign(value=rows["value"].where(rows["task"] != "multi_lexsum", 0.12))  # of ROUGE, for any text
    asked = {"method": "wg_kv", "size": 0.1, **HELMET, "tasks": SUMMARIES}
    assert ask(evidence, "score_kept_at_size", asked).value == pytest.approx(0.75, rel=1e-3)
    with pytest.raises(NoRows, match="multi_lexsum"):
        ask(Evidence("lab-dense", zero), "score_kept_at_size", asked)


def test_a_lab_model_is_judged_on_stand_ins_as_such(evidence):
    models = {"gatesight": [], "wg_kv": ["lab-dense"]}
    commands = dict.fromkeys(("quick", "lab", "h200", "paper"), "make reproduce")
    judged = judge(claims(), Measured("lab", {"lab-dense": evidence}, models, {}), commands).set_index("claim_id")
    assert judged.loc["wg-f7-over-local-attention", "verdict"] == "direction holds"
    assert judged.loc["wg-f14-over-duo-attention", "measured"] == pytest.approx(12.5)
    assert judged.loc["wg-s1-near-lossless", "measured"] == pytest.approx(0.9375)
    assert judged.loc["wg-s52-reranking-at-tenth", "measured"] == pytest.approx(0.75, rel=1e-3)
    assert judged.loc["wg-s52-summaries-at-tenth", "verdict"] == "undecided"
    assert judged.loc["wg-f11-lambda-shrinks-cache", "verdict"] == "direction holds"
    assert judged.loc["wg-f11-lambda-raises-loss", "measured"] == pytest.approx(0.0138889, rel=1e-4)
    assert judged.loc["wg-t1-admission-slows-growth", "verdict"] == "reproduced"  # said of any model
    for claim in ("wg-t1-selection-keeps-memory", "wg-f2a-admission-and-selection"):
        assert judged.loc[claim, "verdict"] in ("reproduced", "direction holds")
    for claim in ("wg-s23-skewed-utility", "wg-f3-head-specific", "wg-f3-transient-utility", "wg-f13-task-sensitivity"):
        assert judged.loc[claim, "verdict"] == "direction holds"
    for claim in ("wg-f12-local-cache-needed", "wg-f12-gap-widens"):
        assert judged.loc[claim, "verdict"] == "direction holds"
    for claim in ("wg-f2b-eviction-starts-later", "wg-f2b-fewer-attended-entries"):
        assert judged.loc[claim, "verdict"] == "direction holds"
    assert judged.loc["wg-f13-heads-decide-apart", "verdict"] == "undecided"  # 0.5 is neither above nor below 0.5
    assert judged.loc["wg-f9-quest-curves-overlap", "verdict"] == "contradicted"  # made to differ
    assert judged.loc["wg-s33-gates-become-binary", "verdict"] == "direction holds"


def ruling(name, rows):
    entry, of = next(claim for claim in claims() if claim.id == name), Evidence("lab-dense", rows)
    found = {key: ask(of, entry.query.function, p) for key, p in entry.query.calls().items()}
    return verdict(entry, found, "lab-dense")


def test_caches_are_ragged_or_not():
    rows = pattern_rows()
    assert ruling("wg-s24-ragged", rows[rows["task"] != "html_to_tsv"]) == "direction holds"
    level = rows.assign(value=rows["value"].where(rows["experiment"] != "head_sizes", 0.5))
    assert ruling("wg-s24-ragged", level) == "contradicted"
    first = rows["options"].str.contains('"layer": 0') & (rows["experiment"] == "head_sizes")
    one = rows.assign(value=rows["value"].where(~first, 0.5))  # the heads of one layer do not differ
    assert ruling("wg-s24-ragged", one) == "contradicted"
    assert ruling("wg-s24-ragged", rows[rows["item"] < 2]) == "undecided"


def test_an_unmanaged_cache_holds_every_token_or_not():
    rows = pattern_rows()
    assert ruling("wg-s22-cache-linear", rows) == "reproduced"
    where = (rows["method"] == "full") & (rows["metric"] == "entries") & (rows["item"] == 500)
    short = rows.assign(value=rows["value"].where(~where | (rows["task"] != "stdlib 3"), 499.0))  # one entry, once
    assert ruling("wg-s22-cache-linear", short) == "contradicted"
    with pytest.raises(NoRows):
        ruling("wg-s22-cache-linear", rows[rows["method"] != "full"])


@pytest.mark.parametrize(
    ("name", "metric", "wrong"),
    [
        ("wg-s31-local-then-global", "misplaced_after_prefill", 1.0),
        ("wg-s31-local-then-global", "misplaced_after_decoding", 2.0),
        ("wg-s32-open-gate-is-full-attention", "open_gate", 0.01),
        ("wg-s32-closed-gate-hides-token", "closed_gate", 0.01),
        ("wg-s32-log-space", "log_space", 0.01),
    ],
)
def test_what_holds_by_definition_holds_everywhere_or_not(name, metric, wrong):
    """One wrong layer of one document contradicts."""
    rows = pattern_rows()
    assert ruling(name, rows) == "reproduced"
    where = (rows["metric"] == metric) & (rows["item"] == 7) & rows["options"].str.contains('"layer": 1')
    assert where.sum() == 1
    assert ruling(name, rows.assign(value=rows["value"].where(~where, wrong))) == "contradicted"
    with pytest.raises(NoRows):
        ruling(name, rows[rows["metric"] != metric])
