"""Figures 10 and 16 of WG-KV and the queries on reasoning under a limit, over rows with known numbers."""

from __future__ import annotations

import pandas as pd
import pytest
from synthetic_bounded import FULL, GATES, LIMITS, bounded_rows

from kvrepro.analysis.bounded import Setting, bounded, several
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.ledger import claims
from kvrepro.claims.queries import ask
from kvrepro.claims.report import Measured, judge
from kvrepro.errors import InputError
from kvrepro.figures.bounded import figure_10, figure_16


@pytest.fixture(scope="module")
def rows():
    return bounded_rows()


@pytest.fixture
def evidence(rows):
    return Evidence("lab-dense", rows)


def test_every_setting_has_its_accuracy_entries_and_evictions(rows):
    found = bounded(rows)
    assert len(found.settings) == 1 + len(GATES) + 2 * 4 and found.items == 12 and found.tasks == ("registers",)
    assert found.budgets == [250, 400] and found.boundings == ["snapkv"]
    whole = found.place(Setting())
    assert found.full == whole and found.accuracy.value[whole] == 75 and found.entries.value[whole] == FULL[1]
    for trade, (accuracy, entries) in GATES.items():
        place = found.place(Setting(trade))
        assert found.accuracy.value[place] == 100 * accuracy and found.entries.value[place] == entries
    for budget, by_trade in LIMITS.items():
        for trade, (accuracy, evictions) in by_trade.items():
            place = found.place(Setting(trade, budget, "snapkv"))
            assert found.accuracy.value[place] == 100 * accuracy and found.evictions.value[place] == evictions
            assert found.accuracy.low[place] < 100 * accuracy < found.accuracy.high[place]


def test_an_item_that_failed_anywhere_is_left_out_everywhere(rows):
    broken = rows.copy()
    wrong = (broken["method"] == "snapkv@budget=250") & (broken["item"] == 11)
    broken.loc[wrong, ["ok", "failed_checks"]] = [False, "budget"]
    found = bounded(broken)
    assert found.items == 11 and found.failed == 1 and found.accuracy.value[found.full] == pytest.approx(900 / 11)


def test_the_limit_is_the_largest_that_is_outgrown_several_times(rows):
    assert several(bounded(rows)) == 250
    assert several(bounded(rows.assign(peak_entries=rows["peak_entries"] * 1.6))) == 400
    assert several(bounded(rows.assign(peak_entries=rows["peak_entries"] * 0.9))) is None


def test_rows_without_a_limit_are_refused(rows):
    for some in (rows[:0], rows[~rows["method"].str.contains("snapkv")]):
        with pytest.raises(InputError, match="no accuracy rows with a limit"):
            bounded(some)


@pytest.mark.parametrize(
    ("function", "parameters", "expected"),
    [
        ("bounded_accuracy", {"series": "full"}, 75),
        ("bounded_accuracy", {"series": "eviction"}, 25),
        ("bounded_accuracy", {"series": "eviction", "relative": "over_full"}, 1 / 3),
        ("bounded_accuracy", {"series": "both"}, 75),
        ("bounded_accuracy", {"series": "both", "trade_off": 0.16}, 50),
        ("bounded_accuracy", {"series": "both", "relative": "minus_full"}, 0),
        ("bounded_accuracy", {"series": "unbounded", "trade_off": 1.28, "relative": "minus_full"}, -25),
        ("bounded_accuracy", {"series": "admission"}, 50),  # 1.28 is the smallest lambda that never reaches 250
        ("bounded_evictions", {"trade_off": 0.16}, 20),
        ("bounded_evictions", {"trade_off": 1.28}, 0),
        ("evictions_over_alone", {}, 0.5),
        ("unbounded_fall", {"quantity": "accuracy"}, 0),
        ("unbounded_fall", {"quantity": "entries"}, 200),
    ],
    ids=str,
)
def test_queries(evidence, function, parameters, expected):
    found = ask(evidence, function, parameters)
    assert found.value == pytest.approx(expected) and found.units == 12
    assert found.low <= found.value + 1e-9 and found.high >= found.value - 1e-9


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("bounded_accuracy", {"series": "both", "trade_off": 0.5}),
        ("bounded_accuracy", {"series": "unbounded", "trade_off": 0.02}),
        ("bounded_evictions", {"trade_off": 0.02}),
    ],
    ids=str,
)
def test_rows_that_do_not_answer(evidence, function, parameters):
    with pytest.raises(NoRows):
        ask(evidence, function, parameters)


def test_a_model_that_does_not_solve_the_task_answers_nothing():
    evidence = Evidence("lab-dense", bounded_rows(dense=0.0))
    for function, parameters in (
        ("bounded_accuracy", {"series": "eviction"}),
        ("evictions_over_alone", {}),
        ("unbounded_fall", {"quantity": "entries"}),
    ):
        with pytest.raises(NoRows, match="answers of the unpruned model to registers"):
            ask(evidence, function, parameters)


def test_a_limit_that_nothing_outgrows_answers_nothing(rows):
    evidence = Evidence("lab-dense", rows.assign(peak_entries=rows["peak_entries"] * 0.9))
    with pytest.raises(NoRows, match="outgrows several times"):
        ask(evidence, "bounded_accuracy", {"series": "eviction"})
    assert ask(evidence, "bounded_accuracy", {"series": "full"}).value == 75


def test_claims_are_judged_from_rows():
    models, commands = (
        {"gatesight": [], "wg_kv": ["lab-dense"]},
        dict.fromkeys(("quick", "lab", "h200", "paper"), "make"),
    )
    measured = Measured("lab", {"lab-dense": Evidence("lab-dense", bounded_rows(120))}, models, {})
    judged = judge(claims(), measured, commands).set_index("claim_id")
    assert judged.loc["wg-f10-eviction-alone-collapses", "verdict"] == "direction holds"
    assert judged.loc["wg-f10-order", "verdict"] == "direction holds"
    assert judged.loc["wg-f10-matches-unbounded", "verdict"] == "direction holds"
    assert judged.loc["wg-f2b-fewer-evictions", "verdict"] == "direction holds"
    assert judged.loc["wg-f16a-lambda-shrinks-cache", "measured"] == 200
    assert judged.loc["wg-f16b-admission-alone-starves", "verdict"] == "direction holds"
    assert judged.loc["wg-f10-eviction-alone", "verdict"] == "not run here"  # of the paper's models


def lines(axes) -> dict:
    return {line.get_label(): line for line in axes.get_lines()}


def small_print(figure) -> str:
    return figure.texts[-1].get_text().replace("\n", " ")


def test_figure_10_draws_each_method_at_its_limits(rows):
    figure = figure_10(rows, lab=True)
    left, right = (lines(axes) for axes in figure.axes)
    over = [f"WG-KV (λ = {trade:g}) + SnapKV" for trade in GATES]
    assert list(left) == ["full cache", "WG-KV", "SnapKV", *over] and list(right) == ["SnapKV", *over]
    assert list(left["WG-KV"].get_xdata()) == [100, 300, 500] and list(left["WG-KV"].get_ydata()) == [50, 75, 75]
    assert list(left["SnapKV"].get_xdata()) == [250, 400] and list(left["SnapKV"].get_ydata()) == [25, 50]
    assert list(right[over[0]].get_ydata()) == [20, 6]
    assert figure.get_suptitle() == "lab-dense (lab model), register programs in the place of AIME25"
    assert "holds 1000 entries a head" in small_print(figure) and "writes 90 % of the steps" in small_print(figure)
    assert figure_10(bounded_rows(task="aime25")).get_suptitle() == "lab-dense, AIME25"


def test_figure_16_draws_a_line_without_a_limit_and_one_for_each(rows):
    accuracy, entries, evictions = figure_16(rows).axes
    labels = ["no limit", "SnapKV, 250 a head", "SnapKV, 400 a head"]
    assert list(lines(accuracy)) == list(lines(entries)) == labels and list(lines(evictions)) == labels[1:]
    assert [text.get_text() for text in accuracy.get_xticklabels()] == ["off", "0.16", "0.32", "1.28"]
    assert list(lines(entries)["no limit"].get_ydata()) == [1000, 500, 300, 100]
    assert list(lines(evictions)["SnapKV, 250 a head"].get_ydata()) == [40, 20, 10, 0]


def test_figures_say_when_the_model_does_not_solve_the_task():
    for figure in (figure_10(bounded_rows(dense=0.0)), figure_16(bounded_rows(dense=0.0))):
        text = small_print(figure)
        assert "the model scores below 10 % on registers" in text and "those of what it writes instead" in text


def test_two_methods_of_one_task_are_never_mixed(rows):
    other = rows.assign(options=rows["options"].str.replace('"snapkv"', '"mine"'))
    both = pd.concat([rows, other[other["method"].str.contains("snapkv")]], ignore_index=True)
    found = bounded(both)
    assert found.boundings == ["snapkv", "mine"]
    assert found.accuracy.value[found.place(Setting(None, 250, "mine"))] == 25


def test_two_variants_of_one_method_are_never_mixed(rows):
    other = rows[rows["method"].str.contains("snapkv")]
    changed = other["options"].str.replace('"method": "snapkv"', '"method": "snapkv", "window": 64')
    other = other.assign(method="other " + other["method"], options=changed, value=0.0)
    both = pd.concat([rows, other], ignore_index=True)
    found = bounded(both)
    assert found.boundings == ["snapkv", "snapkv (window 64)"]
    for name, accuracy in (("snapkv", 25), ("snapkv (window 64)", 0)):
        assert found.accuracy.value[found.place(Setting(None, 250, name))] == accuracy
    assert "snapkv (window 64)" in lines(figure_10(both).axes[0])


def test_other_write_gates_are_not_mixed_with_the_first_or_with_the_full_cache(rows):
    gates = rows[rows["method"] == "wg_kv@trade_off=0.16"].assign(value=0.0)
    changed = gates["options"].str.replace('"method": ', '"comparison": "above", "method": ')
    above = gates.assign(method="above", options=changed)
    unsaid = gates.assign(method="unsaid", options=gates["options"].str.replace("0.16}", "null}"))
    found = bounded(pd.concat([rows, above, unsaid], ignore_index=True))
    assert found.accuracy.value[found.place(Setting(0.16))] == 75 and found.accuracy.value[found.full] == 75


def test_figures_are_drawn_of_eviction_alone(rows):
    alone = rows[~rows["method"].str.contains("wg_kv")]
    assert list(lines(figure_10(alone).axes[0])) == ["full cache", "SnapKV"]
    assert [text.get_text() for text in figure_16(alone).axes[0].get_xticklabels()] == ["off"]
