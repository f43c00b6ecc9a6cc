"""Queries on admission over synthetic rows with known cache sizes, scores and losses, and what is not built."""

from __future__ import annotations

import pandas as pd
import pytest
from synthetic_admission import DECIDED, admission_rows, validation_rows

from kvrepro.benchmarks.helmet import TASKS
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.ledger import claims
from kvrepro.claims.queries import ask
from kvrepro.claims.report import Measured, judge

HELMET = {"benchmark": "helmet"}
SUMMARIES = ["infbench_sum_eng", "multi_lexsum"]


@pytest.fixture(scope="module")
def evidence():
    rows = [admission_rows("helmet", tasks=TASKS), admission_rows("ruler", items=10), validation_rows()]
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
        ("lambda_effect", {"quantity": "size"}, 0.18),
        ("lambda_effect", {"quantity": "loss"}, 0.01 / 0.36 - 0.01 / 0.72),
        ("threshold_excess", {}, 1),
        ("gates_decided", {}, min(DECIDED.values())),
    ],
    ids=str,
)
def test_queries(evidence, function, parameters, expected):
    found = ask(evidence, function, parameters)
    assert found.value == pytest.approx(expected, rel=0.01)
    assert found.low <= found.value + 1e-9 and found.high >= found.value - 1e-9 and found.units >= 10


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
    ],
    ids=str,
)
def test_rows_that_do_not_answer(evidence, function, parameters):
    with pytest.raises(NoRows):
        ask(evidence, function, parameters)


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
    commands = dict.fromkeys(("quick", "lab", "paper"), "make reproduce")
    judged = judge(claims(), Measured("lab", {"lab-dense": evidence}, models, {}), commands).set_index("claim_id")
    assert judged.loc["wg-f7-over-local-attention", "verdict"] == "direction holds"
    assert judged.loc["wg-f14-over-duo-attention", "measured"] == pytest.approx(12.5)
    assert judged.loc["wg-s1-near-lossless", "measured"] == pytest.approx(0.9375)
    assert judged.loc["wg-s52-reranking-at-tenth", "measured"] == pytest.approx(0.75, rel=1e-3)
    assert judged.loc["wg-s52-summaries-at-tenth", "verdict"] == "undecided"
    assert judged.loc["wg-f11-lambda-shrinks-cache", "verdict"] == "direction holds"
    assert judged.loc["wg-f11-lambda-raises-loss", "measured"] == pytest.approx(0.0138889, rel=1e-4)
    assert judged.loc["wg-t1-admission-slows-growth", "verdict"] == "reproduced"  # said of any model
    assert judged.loc["wg-s33-gates-become-binary", "verdict"] == "direction holds"
