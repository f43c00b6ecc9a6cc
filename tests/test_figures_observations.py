"""Figures and tables of the observations, budgets and gates from synthetic rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from synthetic_observations import ATTENTION, DOCUMENTS, GDN, HEADS, KEPT, WINDOWS, life, observation_rows
from synthetic_rows import accuracy_rows, predictor_rows

from kvrepro.analysis.names import ABLATION_TASKS, ALLOCATION_ABLATION, LENGTH_PREDICTORS
from kvrepro.figures.accuracy import figure_4a, figure_9
from kvrepro.figures.budgets import figure_13
from kvrepro.figures.memory import figure_1
from kvrepro.figures.observations import figure_2, figure_6, figure_7
from kvrepro.tables.budgets import appendix_d, table_3, table_4
from kvrepro.tables.observations import table_6, table_7


@pytest.fixture(scope="module")
def rows():
    return pd.concat([observation_rows(), predictor_rows()], ignore_index=True)


@pytest.fixture(scope="module")
def accuracies():
    return accuracy_rows({"gatesight": 0.75, "kvzip": 0.25}, kept=(0.1, 0.4, 1.0))


def lines(axes) -> dict:
    return {line.get_label(): line for line in axes.get_lines()}


def test_figure_1_draws_every_head_pair_and_document(rows):
    lives, pairs, overlap = figure_1(rows, lab=True).axes
    drawn = sum(len(dots.get_offsets()) for dots in lives.collections[1:])
    assert drawn == len(GDN) * HEADS
    slow = lives.collections[-1].get_offsets()[:, 1]
    assert sorted(slow) == sorted(x for layer in GDN for h in range(HEADS) if (x := life(layer, h)) >= 1000)
    assert sum(bar.get_height() for bar in pairs.patches) == DOCUMENTS
    assert [text.get_text() for text in overlap.texts] == ["0.90", "0.80", "0.65"]
    assert [t.get_text() for t in overlap.get_xticklabels()] == ["300", "1,000", "4,000"]


def test_figure_2_shows_summaries_layers_deciles_and_lengths(rows):
    a, b, c, d = figure_2(rows).axes
    means = [line.get_ydata()[0] for line in a.get_lines() if line.get_marker() == "_" and len(line.get_ydata())]
    expected = [0.2, 0.25, 0.7, 0.35, 0.4, 0.45]  # levels of the synthetic predictors, plus a tenth of a layer
    assert means[: len(expected)] == pytest.approx([x + 0.01 for x in expected], abs=0.01)
    assert set(lines(b)) >= {"slow heads", "all heads"} and list(b.get_xticks()) == [3, 7, 11]
    top = lines(c)["top 10%"].get_ydata()
    assert top == pytest.approx([10 * decile / 55 for decile in range(1, 11)], abs=0.1)
    assert [bar.get_height() for bar in d.patches] == pytest.approx([0.4] * 5, abs=0.02)
    assert d.get_xticklabels()[4].get_text() == f"ruler 8K\nn={5 * DOCUMENTS}"


def test_figure_6_sorts_heads_and_counts_strong_cells(rows):
    figure = figure_6(rows, lab=True)
    titles = [axes.get_title() for axes in figure.axes[:4]]
    assert titles == [f"layer {x}: 25 % of cells |ρ| > 0.1" for x in (15, 31, 47, 63)]
    image = np.asarray(figure.axes[0].images[0].get_array())
    assert image.shape == (6, HEADS) and (image[:, 0] > 0.25).all() and (image[:, 1:] < 0.1).all()
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["8", "9", "10", "12", "13", "14"]


def test_figure_7_marks_the_best_layer_and_the_window(rows):
    axes = figure_7(rows).axes[0]
    best = lines(axes)["highest correlation"]
    assert list(best.get_xdata()) == list(ATTENTION)
    assert list(best.get_ydata()) == [min(28, layer - 1) for layer in ATTENTION]
    bars = [line.get_ydata() for line in axes.get_lines() if line.get_linewidth() == 6 and len(line.get_ydata())]
    assert [list(x) for x in bars[:2]] == [[0, 2], [0, 6]]


def test_figure_13_has_a_panel_a_task_and_a_line_a_rule(rows):
    figure = figure_13(rows, lab=True)
    assert [axes.get_title() for axes in figure.axes] == list(ABLATION_TASKS)
    found = lines(figure.axes[0])
    assert set(found) == {"gate-proportional", "flat", "PyramidKV"}
    assert list(found["flat"].get_xdata()) == list(KEPT[1:])  # 0.05 is Appendix D's
    assert found["flat"].get_ydata()[0] == pytest.approx(60)


def test_accuracy_figures_name_their_benchmark(accuracies):
    assert "RULER 1024" in figure_4a(accuracies).axes[0].get_title()
    for lab in (True, False):
        text = " ".join(t.get_text() for t in figure_4a(accuracies, lab=lab).findobj(Text)).replace("\n", " ")
        assert ("trained on contexts in RULER's formats" in text) == lab
        assert ("trained on contexts in RULER's formats" in table_3(accuracies, lab=lab)[1]) == lab
    assert "end after most_new_tokens" not in table_3(accuracies)[1]
    cut = accuracies.assign(experiment="scbench", benchmark="scbench_stand_in")
    assert "end after most_new_tokens" in table_3(cut)[1]
    other = accuracies.assign(experiment="scbench", benchmark="scbench")
    assert figure_4a(other).axes[0].get_title().endswith("SCBench")
    assert "SCBench by task" in figure_9(other).get_suptitle()


def test_table_3_compares_at_every_fraction_and_on_the_mean(accuracies):
    frame, text = table_3(accuracies, lab=True)
    found = frame.set_index(["method", "budget"])["accuracy"]
    assert found["gatesight", "0.1"] == pytest.approx(75) and found["kvzip", "0.1"] == pytest.approx(25)
    mean = (found["kvzip", "0.1"] + found["kvzip", "0.4"]) / 2
    assert found["kvzip", "mean"] == pytest.approx(mean)
    assert "| GateSight |" in text and "**75.0**" in text and "RULER, lab-hybrid (lab model)" in text
    alone, text = table_3(accuracies[accuracies["method"] != "kvzip"])
    assert set(alone["method"]) == {"gatesight"} and "| KVzip | not run |" in text
    both = pd.concat([accuracies, accuracies.assign(experiment="scbench")])
    assert list(table_3(both)[0]["benchmark"].unique()) == ["ruler", "scbench"]


def test_table_4_is_over_the_tasks_of_each_benchmark(rows):
    frame, text = table_4(rows)
    assert set(frame["method"]) == set(ALLOCATION_ABLATION) and set(frame["benchmark"]) == {"ruler", "scbench"}
    found = frame.set_index(["benchmark", "method", "budget"])["accuracy"]
    every = [found["ruler", "pyramid", str(share)] for share in KEPT[1:]]
    assert found["ruler", "pyramid", "mean"] == pytest.approx(np.mean(every)) and len(every) == 9
    assert ("ruler", "pyramid", "0.05") not in found
    assert "mean over 3 tasks of 20 items" in text and "SCBench" in text
    ruler = table_4(rows[~rows["task"].isin(ABLATION_TASKS[:3])])[0]
    assert set(ruler["benchmark"]) == {"ruler"}


def test_table_6_has_a_line_a_set(rows):
    frame, text = table_6(rows)
    assert len(frame) == 5 * len(LENGTH_PREDICTORS)
    found = frame.set_index(["set", "predictor"])
    assert found.loc[("4K", "write"), "overlap@10"] == pytest.approx(30, abs=1)
    assert "| 8K (12) |" in text and "| ruler 8K (60) |" in text and "in-sample" in text


def test_table_7_has_a_line_a_window(rows):
    frame, text = table_7(rows)
    assert list(frame["window"]) == list(WINDOWS) and list(frame["inputs"]) == list(WINDOWS.values())
    assert frame["overlap@10"].is_monotonic_increasing
    assert "| 12 | 1,731 |" in text and text.count("**") == 2 * 4


def test_appendix_d_gathers_the_gate_analyses(rows):
    frame, text = appendix_d(rows, lab=True)
    found = frame.set_index("name")["value"]
    assert found["without 3 7 11"] == pytest.approx(95) and found["dense"] == pytest.approx(100)
    costs = frame[frame["analysis"] == "heads"]["value"]
    assert list(costs) == pytest.approx([1, 3])
    budgets = frame[frame["analysis"] == "budgets"]
    assert len(budgets) == 5 * len(KEPT)
    own = rows[rows["experiment"] == "budgets"].assign(experiment="long_budgets", value=0.0)
    long = appendix_d(pd.concat([rows, own], ignore_index=True))[0]
    assert (long.loc[long["analysis"] == "budgets", "value"] == 0).all() and len(long) == len(frame)
    assert all(title in text for title in ("## Within and across heads", "## Attention layers closed", "## Budgets"))
