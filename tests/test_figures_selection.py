"""WG-KV Figure 9: accuracy by what is read, with what is stored, and what is drawn of it."""

from __future__ import annotations

import pytest
from synthetic_admission import BUDGETS, SELECTIONS, admission_rows
from synthetic_rows import TASKS

from kvrepro.analysis.selected import selected
from kvrepro.errors import InputError
from kvrepro.figures.selection import figure_9


@pytest.fixture(scope="module")
def rows():
    return admission_rows()


def test_methods_go_by_what_is_read(rows):
    found = selected(rows)
    assert list(found.held) == list(SELECTIONS) and found.budgets(*SELECTIONS) == list(BUDGETS)
    for name, (size, values) in SELECTIONS.items():
        assert found.held[name] == pytest.approx(size, abs=1e-3)
        assert [found.result[name, n].value for n in BUDGETS] == pytest.approx([100 * x for x in values])
    assert found.result["dense", 1.0].value == 100


def test_an_item_that_failed_for_one_has_no_part_in_the_other(rows):
    broken = rows.copy()
    wrong = (broken["method"] == "quest@budget=64") & (broken["item"] >= 6)  # where it was wrong
    broken.loc[wrong, ["ok", "failed_checks", "kept_entries"]] = [False, "selection", 1]
    found = selected(broken)
    assert found.result["quest", 64].value == 100 == found.result["wg_kv+quest", 64].value
    assert found.result.failed == 6 * len(TASKS) and found.held["quest"] == 1


def test_a_setting_beside_the_budget_is_another_method(rows):
    other = rows[rows["method"] == "quest@budget=64"]
    twice = rows.assign(method=rows["method"].where(~rows.index.isin(other.index), "quest@page=8@budget=64"))
    assert list(selected(twice).held) == ["quest@page=8", *SELECTIONS]
    assert selected(twice).budgets(*SELECTIONS) == list(BUDGETS[1:])


def test_figure_9_shows_both_and_the_full_cache_over_what_is_read(rows):
    figure = figure_9(rows, lab=True)
    assert [axes.get_title() for axes in figure.axes[: len(TASKS) + 1]] == ["mean over tasks", *TASKS]
    for axes in figure.axes[: len(TASKS) + 1]:
        found = {line.get_label(): line for line in axes.get_lines()}
        assert set(found) == {"full cache", "Quest", "WG-KV + Quest"} and axes.get_xscale() == "log"
        assert list(found["WG-KV + Quest"].get_xdata()) == list(BUDGETS)
        assert list(found["WG-KV + Quest"].get_ydata()) == pytest.approx([50, 100, 75])
    said = figure.texts[-1].get_text().replace("\n", " ")
    assert "Quest 100 %, WG-KV + Quest 30 %" in said and "lab-dense is a small model" in said
    with pytest.raises(InputError, match="no accuracy rows of a selection"):
        figure_9(rows[~rows["method"].str.contains("quest")])
