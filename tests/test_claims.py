"""Queries over synthetic rows, verdicts from intervals, and the ledger as CSV and Markdown."""

from __future__ import annotations

import inspect
import json
import math

import numpy as np
import pandas as pd
import pytest
from synthetic_rows import TASKS, accuracy_rows, predictor_rows

from kvrepro.analysis.bootstrap import DRAWS, Estimate
from kvrepro.claims import queries, verdicts
from kvrepro.claims.ledger import Claim, Query, Tolerance, claims, query_functions
from kvrepro.claims.queries import QUERIES, Evidence, NoRows, ask
from kvrepro.claims.report import COLUMNS, Measured, judge, markdown, measured
from kvrepro.results import write_rows

METHODS = {"gatesight": 0.75, "snapkv": 0.5, "random": 0.25}


@pytest.fixture(scope="module")
def evidence():
    rows = pd.concat([accuracy_rows(METHODS), predictor_rows()], ignore_index=True)
    return Evidence("lab-hybrid", rows)


def estimate(value, low=None, high=None, units=100) -> Estimate:
    """An estimate whose interval is (low, high)."""
    low, high = (value if x is None else x for x in (low, high))
    return Estimate(np.float64(value), np.linspace(low, high, DRAWS), units)


def claim(**changes) -> Claim:
    given = {
        "id": "gs-test",
        "paper": "gatesight",
        "place": "§5.2",
        "also": (),
        "models": ("Qwen3.8-27B",),
        "statement": "A statement about a number.",
        "published": 50.0,
        "unit": "points",
        "kind": "value",
        "tolerance": Tolerance("because", absolute=2.0),
        "direction": None,
        "query": Query("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "ruler"}),
        "note": None,
        "protocols": ("paper",),
        "tiers": ("quick", "lab", "paper"),
        "part": "foundation",
    }
    return Claim(**given | changes)


# Queries


def test_every_declared_query_exists_with_its_parameters():
    declared = query_functions()
    assert set(declared) == set(QUERIES)
    for name, signature in declared.items():
        evidence_argument, *parameters = inspect.signature(QUERIES[name]).parameters.values()
        assert evidence_argument.name == "evidence"
        assert {p.name for p in parameters} == set(signature["properties"])
        assert {p.name for p in parameters if p.default is p.empty} == set(signature["required"])


@pytest.mark.parametrize(
    ("function", "parameters", "expected"),
    [
        ("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "ruler"}, 75),
        ("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "ruler", "tasks": "vt"}, 75),
        ("accuracy_difference", {"a": "gatesight", "b": "random", "kept": 0.1, "benchmark": "ruler"}, 50),
        ("accuracy_min_difference", {"a": "gatesight", "b": "random", "benchmark": "ruler"}, 25),
        ("tasks_won", {"a": "gatesight", "b": "random", "kept": 0.1, "benchmark": "ruler"}, len(TASKS)),
        ("tasks_won", {"a": "random", "b": "gatesight", "kept": 0.1, "benchmark": "ruler"}, 0),
        ("budget_error", {"method": "gatesight", "benchmark": "ruler"}, 0),
        ("identity_rate", {"benchmark": "ruler"}, 1),
        ("label_check", {"metric": "closed_form_error"}, 1e-6),
        ("label_check", {"metric": "reconstruction_error"}, 1e-6),
        ("label_check", {"metric": "coverage"}, 1),
        ("gate_span", {"statistic": "ratio"}, 16),
        ("example_document", {"statistic": "correlation"}, 0.4),
        ("predictor_value", {"predictor": "mlp", "metric": "overlap_10"}, 65.9),
        ("predictor_value", {"predictor": "mlp", "metric": "spearman", "layer": 3}, 0.649),
        ("predictor_difference", {"a": "mlp", "b": "ridge", "metric": "overlap_10"}, 5),
        ("predictor_difference", {"a": "mlp", "b": "ridge", "metric": "spearman", "corpus": "code"}, 0.05),
        ("predictor_difference", {"a": "slow_write", "b": "write", "metric": "spearman"}, 0.1),
        ("predictor_ratio", {"a": "single_head_oracle", "b": "value_norm", "metric": "spearman"}, 0.509 / 0.159),
        ("predictor_layers_won", {"a": "mlp", "b": "ridge", "metric": "overlap_10"}, 1),
        ("predictor_corpora_won", {"a": "ridge", "b": "mlp", "metric": "overlap_10"}, 0),
    ],
    ids=str,
)
def test_queries(evidence, function, parameters, expected):
    found = ask(evidence, function, parameters)
    assert found.value == pytest.approx(expected, rel=0.01, abs=1e-9)
    assert found.low <= found.value + 1e-9 and found.high >= found.value - 1e-9
    assert found.draws.shape == (DRAWS,) and found.units >= 10


def test_cache_share(evidence):
    found = ask(evidence, "cache_share", {"method": "gatesight", "kept": 0.1, "benchmark": "ruler"})
    assert found.value == pytest.approx((20 + 99) / 1006, rel=0.02)


def test_a_wrong_budget_and_a_broken_identity_are_found(evidence):
    rows = evidence.rows.copy()
    rows.loc[(rows["method"] == "gatesight") & (rows["item"] == 3), "kept_entries"] += 2
    rows.loc[rows["method"] == "full", "failed_checks"] = "positions,identity"
    broken = Evidence("lab-hybrid", rows)
    assert ask(broken, "budget_error", {"method": "gatesight", "benchmark": "ruler"}).value == 2
    assert ask(broken, "identity_rate", {"benchmark": "ruler"}).value == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("accuracy_value", {"method": "kvzip", "kept": 0.1, "benchmark": "ruler"}),
        ("accuracy_value", {"method": "gatesight", "kept": 0.4, "benchmark": "ruler"}),
        ("accuracy_value", {"method": "gatesight", "kept": "mean", "benchmark": "ruler"}),
        ("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "scbench"}),
        ("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "ruler", "tasks": ["cwe"]}),
        ("predictor_value", {"predictor": "nobody", "metric": "spearman"}),
    ],
    ids=str,
)
def test_what_the_rows_cannot_answer(evidence, function, parameters):
    with pytest.raises(NoRows):
        ask(evidence, function, parameters)


def test_every_query_of_the_ledger_can_be_asked(evidence):
    for entry in claims():
        if entry.query is not None:
            for parameters in entry.query.calls().values():
                try:
                    ask(evidence, entry.query.function, parameters)
                except NoRows:
                    continue


# Verdicts


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({}, estimate(50, 49, 51), verdicts.REPRODUCED),
        ({}, estimate(50, 47, 53), verdicts.UNDECIDED),  # the point agrees, the interval does not
        ({}, estimate(50, 49, 51, units=4), verdicts.UNDECIDED),  # too few units for any interval
        ({}, estimate(60, 58, 62), verdicts.NOT_RUN),  # another model, no direction: says nothing
        ({"models": ()}, estimate(60, 58, 62), verdicts.CONTRADICTED),
        ({"direction": {"greater_than": 0}}, estimate(60, 58, 62), verdicts.DIRECTION),
        ({"direction": {"greater_than": 0}}, estimate(50, 30, 70), verdicts.DIRECTION),
        ({"direction": {"greater_than": 0}}, estimate(1, -1, 3), verdicts.UNDECIDED),
        ({"direction": {"greater_than": 0}}, estimate(-2, -3, -1), verdicts.CONTRADICTED),
        ({"direction": {"at_least_published": 0.5}}, estimate(30, 26, 34), verdicts.DIRECTION),
        ({"direction": {"at_most_published": 0.5}}, estimate(30, 26, 34), verdicts.CONTRADICTED),
        ({"direction": {"greater_than": 0, "less_than": 10}}, estimate(30, 26, 34), verdicts.CONTRADICTED),
        (
            {"kind": "direction", "published": None, "direction": {"greater_than": 0}},
            estimate(2, 1, 3),
            "direction holds",
        ),
        (
            {"kind": "direction", "published": None, "direction": {"greater_than": 0}, "models": ()},
            estimate(2, 1, 3),
            verdicts.REPRODUCED,
        ),
        (
            {"kind": "direction", "published": None, "direction": {"greater_than": 0}},
            estimate(0.1, -0.2, 1),
            verdicts.UNDECIDED,
        ),
        ({"kind": "range", "published": {"low": 10, "high": 20}}, estimate(21, 20.5, 21.5), verdicts.REPRODUCED),
        ({"kind": "range", "published": {"high": 20}}, estimate(-100), verdicts.REPRODUCED),
        ({"kind": "range", "published": {"low": 10}, "models": ()}, estimate(7), verdicts.CONTRADICTED),
    ],
)
def test_verdicts(changes, found, expected):
    assert verdicts.verdict(claim(**changes), {"": found}, "lab-hybrid") == expected


def test_a_direction_on_the_papers_own_model_reproduces():
    entry = claim(kind="direction", published=None, direction={"greater_than": 0})
    assert verdicts.verdict(entry, {"": estimate(2, 1, 3)}, "Qwen3.8-27B") == verdicts.REPRODUCED


def test_all_numbers_of_a_claim_must_hold():
    entry = claim(published={"0.1": 50.0, "0.5": 70.0}, direction={"greater_than": 0})
    good, bad = estimate(50, 49, 51), estimate(60, 59, 61)
    assert verdicts.verdict(entry, {"0.1": good, "0.5": estimate(70)}, "x") == verdicts.REPRODUCED
    assert verdicts.verdict(entry, {"0.1": good, "0.5": bad}, "x") == verdicts.DIRECTION


def test_orderings_are_judged_by_paired_differences():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 10, DRAWS)  # noise that all methods share does not blur their order
    found = {n: Estimate(np.float64(v), v + shared, 100) for n, v in (("a", 3.0), ("b", 2.0), ("c", 1.0))}
    entry = claim(kind="ordering", published=("a", "b", "c"), tolerance=None)
    assert verdicts.verdict(entry, found, "x") == verdicts.REPRODUCED
    wrong = claim(kind="ordering", published={"c": 9, "b": 5, "a": 5}, tolerance=None, models=())
    assert verdicts.verdict(wrong, found, "x") == verdicts.CONTRADICTED


def test_a_relative_tolerance_widens_each_bound():
    entry = claim(kind="range", published={"low": 10, "high": 20}, tolerance=Tolerance("because", relative=0.1))
    low, high, _ = verdicts.accepted(entry, "")
    assert (low, high) == (9, 22)
    assert math.isinf(verdicts.accepted(claim(kind="range", published={"low": 1}), "")[1])


# The report


@pytest.fixture(scope="module")
def judged(evidence):
    roles = {"gatesight": ["lab-hybrid"], "wg_kv": ["lab-dense"]}
    empty = Evidence("lab-dense", evidence.rows[:0])
    hardware = {"lab-hybrid": "2 CPU cores"}
    return judge(claims(), Measured("quick", {"lab-hybrid": evidence, "lab-dense": empty}, roles, hardware))


def test_every_claim_has_a_row_and_a_verdict(judged):
    assert list(judged.columns) == list(COLUMNS)
    assert list(judged["claim_id"].unique()) == [c.id for c in claims()]
    assert set(judged["verdict"]) <= set(verdicts.VERDICTS)
    assert {"reproduced", "direction holds", "not run here", "not built"} <= set(judged["verdict"])


def test_measured_rows_carry_interval_model_hardware_and_command(judged):
    row = judged.set_index("claim_id").loc["gs-abs-gate-spread-across-layers"]
    assert row["measured"] == pytest.approx(16, rel=0.01)
    assert row["low"] <= row["measured"] <= row["high"]
    assert (row["model"], row["hardware"], row["verdict"]) == ("lab-hybrid", "2 CPU cores", "direction holds")
    assert row["command"] == "make reproduce TIER=quick"


def test_a_claim_that_is_not_run_here_has_a_command_and_one_not_built_has_none(judged):
    not_run = judged[judged["verdict"] == "not run here"]
    assert len(not_run) and not_run["command"].str.startswith("make reproduce TIER=").all()
    not_built = judged[judged["verdict"] == "not built"]
    assert not_built["command"].isna().all() and not_built["measured"].isna().all()


def test_several_numbers_are_json(judged):
    row = judged.set_index("claim_id").loc[judged["published"].astype(str).str.contains('"min"').to_numpy()].iloc[0]
    assert set(json.loads(row["measured"])) == set(json.loads(row["published"])) == {"min", "max"}


def test_markdown_counts_verdicts_and_labels_lab_models(judged):
    text = markdown(claims(), {"quick": judged, "reference/lab": judged}, ["lab-hybrid"])
    counted = judged[judged["paper"] == "gatesight"]["verdict"].value_counts()
    line = next(x for x in text.splitlines() if x.startswith("| GateSight") and "| quick |" in x)
    assert [int(c) for c in line.split("|")[3:-2]] == [counted.get(v, 0) for v in verdicts.VERDICTS]
    assert "reference/lab: measured" in text and "(lab-hybrid, lab model)" in text
    assert "### Table 5" in text and "Hardware: quick: 2 CPU cores" in text


def test_files_are_read_with_their_hardware(tmp_path):
    path = tmp_path / "accuracy" / "lab-hybrid" / "ruler" / "vt.parquet"
    write_rows(accuracy_rows(METHODS, tasks=["vt"]), path, {"hardware": "one test"})
    found = measured("quick", [str(path)], {"hybrid": ["lab-hybrid"], "dense": ["lab-dense"]})
    assert found.hardware == {"lab-hybrid": "one test"}
    assert len(found.evidence["lab-hybrid"].rows) and found.evidence["lab-dense"].rows.empty
    assert queries.accuracy_value(found.evidence["lab-hybrid"], "random", 0.1, "ruler").value == pytest.approx(25)
