"""Queries over synthetic rows, verdicts from intervals, and the ledger as CSV and Markdown."""

from __future__ import annotations

import inspect
import json
import math

import numpy as np
import pandas as pd
import pytest
from profile_rows import profile_rows
from synthetic_admission import admission_rows, local_cache_rows, pattern_rows
from synthetic_bounded import bounded_rows
from synthetic_costs import benchmark_rows, with_gathering
from synthetic_observations import observation_rows
from synthetic_rows import accuracy_rows, predictor_rows, scbench_rows

from kvrepro.analysis.bootstrap import DRAWS, FEW, Estimate
from kvrepro.benchmarks import helmet, scbench
from kvrepro.benchmarks.ruler import TASKS
from kvrepro.claims import comparisons, queries, verdicts
from kvrepro.claims.admission import ADMISSION_QUERIES
from kvrepro.claims.bounded import BOUNDED_QUERIES
from kvrepro.claims.growth import GROWTH_QUERIES
from kvrepro.claims.latency import LATENCY_QUERIES
from kvrepro.claims.ledger import Claim, Query, Tolerance, claims, query_functions
from kvrepro.claims.patterns import PATTERN_QUERIES
from kvrepro.claims.queries import QUERIES, Evidence, NoRows, ask
from kvrepro.claims.report import COLUMNS, Measured, judge, markdown, measured
from kvrepro.claims.scoring import SCORING_QUERIES
from kvrepro.claims.selection import SELECTION_QUERIES
from kvrepro.profiling import scoring
from kvrepro.profiling.settings import load as load_profile
from kvrepro.results import write_rows
from kvrepro.training.cost import cost_rows

METHODS = {"gatesight": 0.75, "snapkv": 0.5, "random": 0.25}
ALL = (*comparisons.NINE, 1.0)
COMMANDS = {"quick": "make reproduce TIER=quick", "lab": "make lab", "h200": "profile", "paper": "make paper"}
AT_01 = {"kept": 0.1, "benchmark": "ruler"}
TWICE = {"factor": 2, "metric": "spearman"}
LEAD = {"metric": "overlap@10", "corpus": ["sft-code", "stdlib"]}


@pytest.fixture(scope="module")
def evidence():
    accuracy = accuracy_rows(METHODS, tasks=TASKS, kept=ALL, n_tokens=4000)
    predictors = predictor_rows(corpora=("kjv", "maths", "stdlib"))
    rows = pd.concat([accuracy, predictors, observation_rows()], ignore_index=True)
    return Evidence("lab-hybrid", rows)


@pytest.fixture(scope="module")
def whole(evidence):
    """Rows of both benchmarks under the paper's five methods."""
    methods = {"gatesight": 0.8, "snapkv": 0.5, "triattention": 0.6, "keydiff": 0.4, "kvzip": 0.7}
    options = {"items": 10, "kept": ALL, "n_tokens": 4000}
    others = evidence.rows[evidence.rows["experiment"] != "ruler"]
    made = [accuracy_rows(methods, tasks=TASKS, **options), scbench_rows(methods, 1.0, scbench.TASKS, **options)]
    return Evidence("lab-hybrid", pd.concat([others, *made], ignore_index=True))


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
        ("accuracy_value", {"method": "gatesight", "kept": "mean", "benchmark": "ruler", "length": 4096}, 86.1),
        ("tasks_won", {"a": "gatesight", "b": "random", "kept": 0.1, "benchmark": "ruler"}, len(TASKS)),
        ("tasks_won", {"a": "random", "b": "gatesight", "kept": 0.1, "benchmark": "ruler"}, 0),
        ("budget_error", {"method": "gatesight", "benchmark": "ruler"}, 0),
        ("identity_rate", {"benchmark": "ruler"}, 1),
        ("label_check", {"metric": "closed_form_error"}, 1e-6),
        ("label_check", {"metric": "module_error"}, 1e-6),
        ("label_check", {"metric": "covered"}, 1),
        ("label_check", {"metric": "module_error", "unit": "%"}, 1e-4),
        ("gate_span", {"statistic": "ratio"}, 16),
        ("median_correlation", {}, 0.4),
        ("predictor_value", {"predictor": "mlp", "metric": "overlap@10"}, 65.9),
        ("predictor_value", {"predictor": "mlp", "metric": "spearman", "layer": 3}, 0.649),
        ("predictor_difference", {"a": "mlp", "b": "ridge", "metric": "overlap@10"}, 5),
        (
            "predictor_difference",
            {"a": "mlp", "b": "ridge", "metric": "spearman", "corpus": ["sft-code", "stdlib"]},
            0.05,
        ),
        ("predictor_difference", {"a": "write_slow", "b": "write", "metric": "spearman"}, 0.1),
        ("predictor_multiple", {"a": "oracle", "b": "v_preceding", **TWICE, "part": "excess"}, 0.509 - 2 * 0.159),
        ("predictor_multiple", {"a": "oracle", "b": "v_preceding", **TWICE, "part": "base"}, 0.159),
        ("predictor_lead", {"a": "mlp", "b": "ridge", **LEAD, "other": "kjv"}, 0),
        ("predictor_layers_won", {"a": "mlp", "b": "ridge", "metric": "overlap@10"}, 1),
        ("predictor_corpora_won", {"a": "ridge", "b": "mlp", "metric": "overlap@10"}, 0),
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
    assert found.value == pytest.approx((20 + 398) / 4006, rel=0.02)


def test_a_wrong_budget_and_a_broken_identity_are_found(evidence):
    rows = evidence.rows.copy()
    rows.loc[(rows["method"] == "gatesight") & (rows["item"] == 3), "kept_entries"] += 2
    rows.loc[rows["method"] == "full", "failed_checks"] = "positions,identity"
    broken = Evidence("lab-hybrid", rows)
    assert ask(broken, "budget_error", {"method": "gatesight", "benchmark": "ruler"}).value == 2
    assert ask(broken, "identity_rate", {"benchmark": "ruler"}).value == pytest.approx(3 / 4)


def test_a_model_that_reads_everything_has_no_index(evidence):
    with pytest.raises(NoRows, match="an index"):
        ask(evidence, "index_keys", {"method": "gatesight", "kept": 0.1, "benchmark": "ruler"})


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("accuracy_value", {"method": "kvzip", "kept": 0.1, "benchmark": "ruler"}),
        ("accuracy_value", {"method": "gatesight", "kept": 0.45, "benchmark": "ruler"}),
        ("accuracy_value", {"method": "gatesight", "length": 2048, **AT_01}),
        ("accuracy_value", {"method": "gatesight", "length": 8192, **AT_01}),
        ("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "scbench"}),
        ("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "ruler", "tasks": ["narrative"]}),
        ("predictor_value", {"predictor": "nobody", "metric": "spearman"}),
    ],
    ids=str,
)
def test_what_the_rows_cannot_answer(evidence, function, parameters):
    with pytest.raises(NoRows):
        ask(evidence, function, parameters)


SB = {"a": "gatesight", "b": "kvzip", "benchmark": "scbench"}
SEVEN = [t for t in scbench.TASKS if t not in ("kv", "prefix_suffix", "repoqa", "repoqa_and_kv", "vt")]


@pytest.mark.parametrize(
    ("function", "parameters", "expected"),
    [
        ("extreme_lead", SB | {"which": "largest"}, 10),
        ("extreme_lead", SB | {"which": "smallest"}, 0),
        ("extreme_lead", SB | {"a": "kvzip", "b": "gatesight", "which": "farthest", "tasks": "kv"}, -10),
        ("extreme_lead", SB | {"a": "kvzip", "b": "gatesight", "which": "farthest", "size": True}, 10),
        ("extreme_lead", SB | {"which": "largest", "kept": [0.9, 1.0]}, 0),
        ("lead_over_best", SB | {"others": ["snapkv", "triattention"], "kept": 0.1}, 20),
        ("lead_between_tasks", SB | {"kept": 0.1, "tasks": ["kv", "repoqa"]}, 0),
        ("budgets_won_by_either", SB, 0),
        ("tasks_lost_everywhere", SB, 0),
        ("tasks_never_behind", SB, 12),
        ("lowest_accuracy", {"method": "kvzip", "benchmark": "scbench", "tasks": "kv"}, 70),
        ("tasks_won", SB | {"kept": 0.1}, 12),
        ("tasks_won_on_all", {"a": "gatesight", "b": "kvzip", "kept": 0.1}, 25),
        ("tasks_won_on_all", {"a": "kvzip", "b": "gatesight", "kept": 0.1}, 0),
        ("accuracy_retained", {"method": "kvzip", "kept": 0.1, "benchmark": "scbench", "tasks": SEVEN}, 70),
        ("scorer_shift", {"tasks": "qa_chn"}, 0),
        ("scorer_shift", {"tasks": "choice_eng", "unpruned": True}, 0),
        ("scorer_mean_shift", {"which": "largest"}, 60 / 12),  # keydiff's six of ten wrong answers, of twelve tasks
        ("scorer_order_changes", {"methods": ["gatesight", "snapkv", "keydiff"]}, 0),
        ("identity_rate", {"benchmark": "scbench"}, 1),
    ],
    ids=str,
)
def test_queries_about_scbench(whole, function, parameters, expected):
    parameters = {k: v for k, v in parameters.items() if k != "b" or "others" not in parameters}
    found = ask(whole, function, parameters)
    assert found.value == pytest.approx(expected, abs=1e-9) and found.draws.shape == (DRAWS,)
    assert found.low <= found.value + 1e-9 and found.high >= found.value - 1e-9


def changed(evidence, where, **values) -> Evidence:
    rows = evidence.rows.copy()
    for column, value in values.items():
        rows.loc[where(rows), column] = value
    return Evidence(evidence.model, rows)


def test_who_leads_where(whole):
    """KVzip is made to lead on kv at every kept fraction and on all tasks at 0.4."""

    def to(method, value, *conditions):
        def where(rows):
            return (rows["experiment"] == "scbench") & (rows["method"] == method) & conditions[0](rows)

        return lambda evidence: changed(evidence, where, value=value)

    kv = to("gatesight", 0.0, lambda rows: (rows["task"] == "kv") & (rows["budget"] < 1))
    at_04 = to("gatesight", 0.0, lambda rows: rows["budget"] == 0.4)
    best = to("kvzip", 1.0, lambda rows: rows["task"] == "kv")
    made = best(at_04(kv(whole)))
    assert ask(made, "tasks_lost_everywhere", SB).value == 1
    assert ask(made, "tasks_never_behind", SB).value == 0
    assert ask(kv(whole), "tasks_never_behind", SB).value == 11
    assert ask(made, "lowest_accuracy", {"method": "gatesight", "benchmark": "scbench"}).value == 0
    assert ask(made, "tasks_won", SB | {"kept": 0.1}).value == 11
    assert ask(made, "budgets_won_by_either", SB).value >= 1
    largest = ask(made, "extreme_lead", SB | {"a": "kvzip", "b": "gatesight", "which": "largest", "tasks": "kv"})
    assert largest.value == 100
    between = SB | {"a": "kvzip", "b": "gatesight", "kept": 0.1, "tasks": ["kv"]}
    assert ask(made, "lead_between_tasks", between).value == pytest.approx(110)
    assert ask(made, "accuracy_difference", SB | {"kept": 0.4, "tasks": "mf"}).value < 0


def test_tasks_that_the_unpruned_model_cannot_answer_decide_no_claim(whole):
    lost = changed(whole, lambda rows: (rows["experiment"] == "scbench") & (rows["task"] == "mf"), value=0.0)
    for function, parameters in (
        ("tasks_won", SB | {"kept": 0.1}),
        ("tasks_won_on_all", {"a": "gatesight", "b": "kvzip", "kept": 0.1}),
        ("accuracy_difference", SB | {"kept": 0.1, "tasks": SEVEN}),
        ("extreme_lead", SB | {"which": "farthest", "tasks": "mf"}),
    ):
        with pytest.raises(NoRows, match="answers of the unpruned model to mf"):
            ask(lost, function, parameters)
    ask(lost, "accuracy_difference", SB | {"kept": 0.1})  # the mean over all tasks is what it is
    ask(lost, "accuracy_difference", SB | {"kept": 0.1, "tasks": "kv"})
    with pytest.raises(NoRows, match="choice_eng"):
        of = changed(whole, lambda rows: rows["task"] == "choice_eng", value=0.0)
        ask(of, "scorer_shift", {"tasks": "choice_eng"})


def test_rows_of_few_tasks_or_without_scorers_answer_nothing_about_all(whole):
    few = without(whole, lambda rows: (rows["experiment"] == "scbench") & (rows["task"] != "kv"))
    plain = without(whole, lambda rows: rows["metric"] == "official")
    for function, parameters in (
        ("accuracy_value", {"method": "gatesight", "kept": 0.1, "benchmark": "scbench"}),
        ("scorer_mean_shift", {"which": "largest"}),
        ("scorer_order_changes", {"methods": ["gatesight", "kvzip"]}),
    ):
        with pytest.raises(NoRows):
            ask(few, function, parameters)
    with pytest.raises(NoRows, match="official scorer"):
        ask(plain, "scorer_shift", {"tasks": "kv"})
    with pytest.raises(NoRows, match="quest"):
        ask(whole, "scorer_order_changes", {"methods": ["gatesight", "quest"]})


def without(evidence, drop) -> Evidence:
    return Evidence(evidence.model, evidence.rows[~drop(evidence.rows)])


@pytest.mark.parametrize("function", ["accuracy_difference", "tasks_won"])
def test_a_missing_task_is_not_judged_by_the_others(evidence, function):
    fewer = without(evidence, lambda rows: rows["task"] == "qa_2")
    with pytest.raises(NoRows, match="qa_2"):
        ask(fewer, function, {"a": "gatesight", "b": "snapkv", **AT_01})
    ask(fewer, "accuracy_value", {"method": "gatesight", "tasks": ["vt"], **AT_01})


def test_the_mean_needs_all_nine_kept_fractions(evidence):
    fewer = without(evidence, lambda rows: rows["budget"] == 0.4)
    with pytest.raises(NoRows):
        ask(fewer, "accuracy_value", {"method": "gatesight", "kept": "mean", "benchmark": "ruler"})


def test_a_difference_is_over_items_that_are_valid_for_both(evidence):
    rows = evidence.rows.copy()
    rows["ok"] = ~((rows["method"] == "snapkv") & (rows["budget"] == 0.1) & (rows["value"] == 0))
    found = ask(Evidence("m", rows), "accuracy_difference", {"a": "gatesight", "b": "snapkv", **AT_01})
    assert found.value == 0  # on the items that both answered, both are right
    other = ask(Evidence("m", rows), "accuracy_difference", {"a": "gatesight", "b": "random", **AT_01})
    assert other.value == pytest.approx(50)


def test_a_task_without_a_valid_row_is_not_judged(evidence):
    rows = evidence.rows.assign(ok=(evidence.rows["task"] != "vt") | (evidence.rows["method"] != "gatesight"))
    with pytest.raises(NoRows, match="vt"):
        ask(Evidence("m", rows), "accuracy_value", {"method": "gatesight", **AT_01})


def test_a_multiple_of_a_negative_correlation_is_none():
    rows = predictor_rows({"write_slow": -0.3, "write": -0.1})
    entry = next(c for c in claims() if c.id == "gs-o2-slow-heads-double-correlation")
    found = {key: ask(Evidence("m", rows), entry.query.function, p) for key, p in entry.query.calls().items()}
    assert verdicts.verdict(entry, found, "Qwen3.8-27B") == verdicts.CONTRADICTED
    turned = predictor_rows({"write_slow": 0.1, "write": -0.1})
    found = {key: ask(Evidence("m", turned), entry.query.function, p) for key, p in entry.query.calls().items()}
    assert found["excess"].low > 0 and verdicts.verdict(entry, found, "Qwen3.8-27B") == verdicts.CONTRADICTED


def test_code_is_compared_with_every_other_corpus(evidence):
    entry = next(c for c in claims() if c.id == "gs-app-c-mlp-over-ridge-widest-on-code")
    assert list(queries.calls(evidence, entry.query)) == ["kjv", "maths"]
    rows = evidence.rows.copy()

    def verdict(of):
        found = {k: ask(of, entry.query.function, p) for k, p in queries.calls(of, entry.query).items()}
        return verdicts.verdict(entry, found, "Qwen3.8-27B")

    for corpus, lead in (("stdlib", 0.05), ("maths", 0.1)):
        mine = (rows["method"] == "mlp") & (rows["task"] == corpus)
        rows.loc[mine, "value"] += lead
        assert verdict(Evidence("m", rows.copy())) == {"stdlib": "reproduced", "maths": "contradicted"}[corpus]
    alone = without(evidence, lambda rows: rows["task"].isin(["kjv", "maths"]))
    with pytest.raises(NoRows):
        queries.calls(alone, entry.query)


def test_corpora_are_named_exactly():
    rows = predictor_rows(corpora=("decode", "code-golf"))
    with pytest.raises(NoRows):
        ask(Evidence("m", rows), "predictor_value", {"predictor": "mlp", "metric": "spearman", "corpus": ["code"]})


def test_the_median_correlation_has_an_interval_over_documents(evidence):
    found = ask(evidence, "median_correlation", {})
    assert found.low < found.value < found.high and found.units == 36
    few = without(evidence, lambda rows: (rows["metric"] == "spearman") & (rows["item"] > 1))
    assert ask(few, "median_correlation", {}).units < FEW


def test_every_claim_with_a_query_can_be_asked(whole):
    answered, known = set(), query_functions()
    profile = profile_rows(load_profile("h200"))
    profiled = {model: Evidence(model, profile[profile["model"] == model]) for model in profile["model"].unique()}
    benchmarks = [admission_rows("helmet", tasks=helmet.TASKS), admission_rows("ruler"), bounded_rows()]
    admitted = Evidence("lab-dense", pd.concat([*benchmarks, local_cache_rows(), pattern_rows()], ignore_index=True))
    of_admission = (*ADMISSION_QUERIES, *SELECTION_QUERIES, *PATTERN_QUERIES, *GROWTH_QUERIES, *BOUNDED_QUERIES)
    scored = scoring.tidy(with_gathering(benchmark_rows(scoring.load())), "h200")
    for entry in claims():
        if entry.query is None:
            continue
        assert entry.query.function in known
        about = whole
        if entry.query.function in {query.__name__ for query in LATENCY_QUERIES}:
            about = profiled[entry.models[0] if entry.models else "Llama-3.1-8B-Instruct"]
        elif entry.query.function == "best_pairs":
            about = Evidence(whole.model, whole.rows, dict.fromkeys(entry.models, whole))
        elif entry.query.function == "tasks_share_of_lead":
            about = changed(whole, lambda rows: rows["method"] == "kvzip", value=0.0)
        elif entry.query.function == "index_keys":
            size = {"model": whole.model, "experiment": "shape", "metric": "index_head_dim", "value": 128.0}
            about = Evidence(whole.model, pd.concat([whole.rows, pd.DataFrame([size])], ignore_index=True))
        elif entry.query.function in {query.__name__ for query in of_admission}:
            about = admitted
        if entry.query.function in {query.__name__ for query in SCORING_QUERIES}:
            about = Evidence(entry.models[0], scored[scored["model"] == entry.models[0]])
        if entry.query.function == "training_cost":
            took = {"seconds": 600.0, "tokens": 6e7}
            where = {"paper": entry.paper, "tier": "paper", "model": entry.models[0]}
            rows = cost_rows(entry.query.parameters["what"], took, {}, "one NVIDIA H200", **where)
            about = Evidence(entry.models[0], pd.DataFrame(rows))
        for parameters in queries.calls(about, entry.query).values():
            try:
                ask(about, entry.query.function, parameters)
            except NoRows:
                continue
            answered.add(entry.id)
            break
    asked = {entry.id for entry in claims() if entry.query is not None}
    assert len(asked) >= 40
    assert asked == answered


# Verdicts


ANOTHER = {"kind": "direction", "published": None, "direction": {"greater_than": 0}}
DIRECTED = {"direction": {"greater_than": 0}}


@pytest.mark.parametrize(
    ("changes", "found", "paper", "lab"),
    [
        ({}, estimate(50, 49, 51), "reproduced", "undecided"),  # the paper's number says nothing of another model
        ({}, estimate(50, 47, 53), "undecided", "undecided"),  # the point agrees, the interval does not
        ({}, estimate(50, 49, 51, units=4), "undecided", "undecided"),  # too few units for any interval
        ({}, estimate(60, 58, 62), "contradicted", "undecided"),
        ({"models": ()}, estimate(60, 58, 62), "contradicted", "contradicted"),
        ({"models": ()}, estimate(50, 49, 51), "reproduced", "reproduced"),
        (DIRECTED, estimate(50, 49, 51), "reproduced", "direction holds"),
        (DIRECTED, estimate(60, 58, 62), "direction holds", "direction holds"),
        (DIRECTED, estimate(50, 30, 70), "direction holds", "direction holds"),
        (DIRECTED, estimate(1, -1, 3), "undecided", "undecided"),
        (DIRECTED, estimate(-2, -3, -1), "contradicted", "contradicted"),
        ({"direction": {"at_least_published": 0.5}}, estimate(30, 26, 34), "direction holds", "direction holds"),
        ({"direction": {"at_most_published": 0.5}}, estimate(30, 26, 34), "contradicted", "contradicted"),
        ({"direction": {"greater_than": 0, "less_than": 10}}, estimate(30, 26, 34), "contradicted", "contradicted"),
        (ANOTHER, estimate(2, 1, 3), "reproduced", "direction holds"),
        (ANOTHER | {"models": ()}, estimate(2, 1, 3), "reproduced", "reproduced"),
        (ANOTHER, estimate(0.1, -0.2, 1), "undecided", "undecided"),
        (ANOTHER, estimate(-2, -3, -1), "contradicted", "contradicted"),
        ({"kind": "range", "published": {"low": 10, "high": 20}}, estimate(21, 20.5, 21.5), "reproduced", "undecided"),
        ({"kind": "range", "published": {"high": 20}}, estimate(-100), "reproduced", "undecided"),
        ({"kind": "range", "published": {"low": 10}}, estimate(7), "contradicted", "undecided"),
    ],
)
def test_verdicts(changes, found, paper, lab):
    assert verdicts.verdict(claim(**changes), {"": found}, "Qwen3.8-27B") == paper
    assert verdicts.verdict(claim(**changes), {"": found}, "lab-hybrid") == lab


def test_a_lab_model_never_reproduces_a_claim_about_the_papers_models(judged):
    ours = {entry.id for entry in claims() if not entry.models}
    assert set(judged.loc[judged["verdict"] == "reproduced", "claim_id"]) <= ours


def test_all_numbers_of_a_claim_must_hold():
    entry = claim(published={"0.1": 50.0, "0.5": 70.0}, direction={"greater_than": 0})
    good, bad = estimate(50, 49, 51), estimate(60, 59, 61)
    assert verdicts.verdict(entry, {"0.1": good, "0.5": estimate(70)}, "Qwen3.8-27B") == verdicts.REPRODUCED
    assert verdicts.verdict(entry, {"0.1": good, "0.5": bad}, "Qwen3.8-27B") == verdicts.DIRECTION


def test_orderings_are_judged_by_paired_differences():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 10, DRAWS)  # noise that all methods share does not blur their order
    found = {n: Estimate(np.float64(v), v + shared, 100) for n, v in (("a", 3.0), ("b", 2.0), ("c", 1.0))}
    entry = claim(kind="ordering", published=("a", "b", "c"), tolerance=None)
    assert verdicts.verdict(entry, found, "Qwen3.8-27B") == verdicts.REPRODUCED
    assert verdicts.verdict(entry, found, "x") == verdicts.DIRECTION
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
    return judge(claims(), Measured("quick", {"lab-hybrid": evidence, "lab-dense": empty}, roles, hardware), COMMANDS)


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
    assert len(not_run) and set(not_run["command"]) <= set(COMMANDS.values())
    asked_of_quick = not_run.set_index("claim_id")["command"]
    assert asked_of_quick["gs-f4b-ruler-over-snapkv"] == "make lab"  # the first tier that can test it
    profiled = not_run["claim_id"].isin(["gs-t2-gatesight", "wg-abs-memory"])  # the latter under both protocols
    assert profiled.sum() == 3 and set(not_run.loc[profiled, "command"]) == {"profile"}
    not_built = judged[judged["verdict"] == "not built"]
    assert not_built["command"].isna().all() and not_built["measured"].isna().all()


def test_several_numbers_are_json(judged):
    row = judged.set_index("claim_id").loc[judged["published"].astype(str).str.contains('"min"').to_numpy()].iloc[0]
    assert set(json.loads(row["measured"])) == set(json.loads(row["published"])) == {"min", "max"}


def test_markdown_counts_verdicts_and_labels_lab_models(judged):
    text = markdown(claims(), {"quick": judged, "reference/lab": judged}, ["lab-hybrid"], ["quick: mixed rows."])
    assert text.startswith("# Claims\n\n**quick: mixed rows.**\n\nLab models")
    counted = judged[judged["paper"] == "gatesight"]["verdict"].value_counts()
    line = next(x for x in text.splitlines() if x.startswith("| GateSight") and "| quick |" in x)
    assert [int(c) for c in line.split("|")[4:-2]] == [counted.get(v, 0) for v in verdicts.VERDICTS]
    assert "| lab-hybrid, lab model |" in line and "also trained on contexts in RULER's formats" in text
    assert "direction holds on lab-hybrid" in text and "| reproduced |" in text
    assert all(f"* **{name}**: {sentence}" in text for name, sentence in verdicts.MEANING.items())
    assert "reference/lab: measured" in text and "(lab-hybrid, lab model)" in text
    assert "### Table 5" in text and "Hardware: quick: 2 CPU cores" in text


def test_files_are_read_with_their_hardware(tmp_path):
    path = tmp_path / "accuracy" / "lab-hybrid" / "ruler" / "vt.parquet"
    write_rows(accuracy_rows(METHODS, tasks=["vt"]), path, {"hardware": "one test"})
    found = measured("quick", [str(path)], {"gatesight": ["lab-hybrid"], "wg_kv": ["lab-dense"]})
    assert found.hardware == {"lab-hybrid": "one test"}
    assert found.evidence["lab-hybrid"].beside("lab-dense") is found.evidence["lab-dense"]
    assert len(found.evidence["lab-hybrid"].rows) and found.evidence["lab-dense"].rows.empty
    assert queries.accuracy_value(found.evidence["lab-hybrid"], "random", 0.1, "ruler", "vt").value == pytest.approx(25)
