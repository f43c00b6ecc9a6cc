"""WG-KV Figures 7 and 11: measured cache sizes, what is drawn, and the frontier."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from synthetic_admission import (
    BASELINES,
    GATES,
    KEPT,
    LAMBDAS,
    THRESHOLDS,
    admission_rows,
    local_cache_rows,
    loss_of,
    size_of,
    validation_rows,
)
from synthetic_rows import TASKS

from kvrepro.analysis.cache_sizes import curves
from kvrepro.analysis.trade_off import frontiers, lowest_loss, trade_off
from kvrepro.errors import InputError
from kvrepro.figures import style
from kvrepro.figures.admission import figure_7, figure_11, figure_12


@pytest.fixture(scope="module")
def rows():
    return admission_rows()


def test_curves_go_by_the_measured_size_and_not_by_the_budget(rows):
    found = curves(rows)
    assert list(found.curves) == [*BASELINES, "wg_kv"] and found.dense.value == 100
    gates = found.curves["wg_kv"]
    assert gates.sizes == pytest.approx(sorted(size for size, _ in GATES.values()), abs=1e-3)
    assert list(gates.accuracy.value) == [75, 100, 100]
    half = rows.assign(kept_entries=rows["kept_entries"].where(rows["method"] != "local_attention", 600))
    assert curves(half).curves["local_attention"].sizes == pytest.approx([0.1] * 4, rel=0.01)


def test_a_size_is_averaged_over_items_and_then_over_tasks(rows):
    double = (rows["task"] == "vt") & rows["method"].str.startswith("wg_kv@trade_off=0.64")
    found = curves(rows.assign(kept_entries=rows["kept_entries"] * (1 + double.astype(int))))
    assert found.curves["wg_kv"].sizes[0] == pytest.approx((0.1 + 0.1 + 0.2) / 3, rel=0.01)
    assert curves(rows.assign(kept_entries=rows["kept_entries"] * (1 + double)), ["vt"]).curves["wg_kv"].sizes[
        0
    ] == pytest.approx(0.2, rel=0.01)


def test_accuracy_at_a_size_lies_between_the_neighbours(rows):
    curve = curves(rows).curves["duo_attention"]
    assert curve.at(KEPT[1]).value == pytest.approx(75, abs=0.2)
    assert curve.at(0.15).value == pytest.approx(62.5, abs=0.2)
    assert curve.at(float(curve.sizes[-1])).value == 100
    with pytest.raises(InputError, match=r"duo_attention held 0\.\d+ to 1 of the cache and has no accuracy at 0.05"):
        curve.at(0.05)


def test_rows_that_failed_a_check_have_no_part_in_a_size(rows):
    broken = rows.copy()
    wrong = (broken["method"] == "wg_kv@trade_off=0.64") & (broken["item"] == 0)
    broken.loc[wrong, ["ok", "failed_checks", "kept_entries"]] = [False, "admission", 6000]
    found = curves(broken)
    assert found.curves["wg_kv"].sizes[0] == pytest.approx(0.1, abs=1e-3) and found.result.failed == len(TASKS)


def test_another_threshold_is_another_curve(rows):
    assert list(curves(rows, threshold=0.5).curves["wg_kv"].sizes) == pytest.approx([0.05], abs=1e-3)
    with pytest.raises(InputError, match="no accuracy rows of an admission method"):
        curves(rows[rows["method"].isin(["dense", "full", "quest@budget=64", "wg_kv+quest@budget=64"])])


def lines(axes) -> dict:
    return {line.get_label(): line for line in axes.get_lines()}


def test_figure_7_shows_three_methods_and_the_full_cache_in_a_panel_a_task(rows):
    figure = figure_7(rows, lab=True)
    assert [axes.get_title() for axes in figure.axes[: len(TASKS) + 1]] == ["mean over tasks", *TASKS]
    for axes in figure.axes[: len(TASKS) + 1]:
        found = lines(axes)
        assert set(found) == {"full cache", "WG-KV", "Local Attention", "DuoAttention"}
        assert found["WG-KV"].get_color() == style.METHODS["wg_kv"].color
        assert list(found["WG-KV"].get_xdata()) == pytest.approx([0.1, 0.3, 0.6], abs=1e-3)
    assert figure.get_suptitle() == "lab-dense (lab model), RULER 1024 in the place of HELMET"
    assert "lab-dense is a small model" in figure.texts[-1].get_text().replace("\n", " ")


def test_figure_7_of_the_papers_benchmark_says_which_judge_was_not_run():
    rows = admission_rows("helmet", tasks=("kilt_nq", "narrativeqa", "multi_lexsum"))
    figure = figure_7(rows.assign(benchmark="helmet_stand_in"))
    assert figure.get_suptitle() == "lab-dense, HELMET stand-ins"
    note = figure.texts[-1].get_text().replace("\n", " ")
    assert "No judge was run: narrativeqa, multi_lexsum by ROUGE-L F1." in note and "in the place" not in note
    assert "No judge" not in figure_7(admission_rows("helmet", tasks=("kilt_nq",))).texts[-1].get_text()


def test_figure_7_of_one_task_is_one_panel(rows):
    figure = figure_7(rows[rows["task"] == "vt"])
    assert [axes.get_title() for axes in figure.axes if axes.axison] == ["vt"]


def test_operating_points_are_means_over_rows_with_their_interval():
    found = trade_off(validation_rows())
    assert found.rows == 24 and found.lambdas == list(LAMBDAS) and found.thresholds == list(THRESHOLDS)
    for place, point in enumerate(found.points):
        assert found.size.value[place] == pytest.approx(size_of(*point))
        assert found.loss.value[place] == pytest.approx(loss_of(*point))
        assert found.loss.low[place] < found.loss.value[place] < found.loss.high[place]
    ratio = found.loss.draws * found.size.draws  # both have the factor of the row, so they are drawn together
    assert np.corrcoef(found.loss.draws[:, 0], found.size.draws[:, 0])[0, 1] > 0.99 and ratio.std() > 0


def test_the_frontier_is_reached_by_points_and_by_mixtures_of_two():
    size, loss = np.array([0.1, 0.3, 0.5, 0.4]), np.array([8.0, 6.0, 0.0, 9.0])
    at = [lowest_loss(size, loss, np.array(x)).item() for x in (0.05, 0.1, 0.3, 0.5, 0.7)]
    assert at == [np.inf, 8, pytest.approx(4), 0, 0]  # half of the contexts with 0.1, half with 0.5
    many = lowest_loss(np.stack([size, size + 0.1]), np.stack([loss, loss]), np.array([0.3, 0.4]))
    assert many == pytest.approx([4, 4])


def test_figure_11_draws_a_line_a_lambda_and_fills_the_papers_threshold():
    figure = figure_11(validation_rows(), lab=True)
    left, right = figure.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == [f"λ = {x:g}" for x in LAMBDAS]
    for threshold, line in zip(THRESHOLDS, [x for x in right.get_lines() if len(x.get_xdata())], strict=True):
        assert list(line.get_xdata()) == list(LAMBDAS)
        assert list(line.get_ydata()) == pytest.approx([size_of(trade, threshold) for trade in LAMBDAS])
        assert (to_rgb(line.get_markerfacecolor()) == (1, 1, 1)) == (threshold != 0.1)
    filled = [x for x in left.get_lines() if x.get_marker() == "v" and to_rgb(x.get_markerfacecolor()) != (1, 1, 1)]
    assert sorted(float(x.get_xdata()[0]) for x in filled) == pytest.approx(sorted(size_of(t, 0.1) for t in LAMBDAS))
    with pytest.raises(InputError, match="run the target write_gates"):
        figure_11(validation_rows()[:0])


def test_gates_without_a_local_cache_are_apart():
    both = local_cache_rows()
    local, without = trade_off(both), trade_off(both, local=False)
    assert local.points == without.points and local.rows == without.rows == 24
    assert without.loss.value == pytest.approx(3 * local.loss.value)
    sizes, own, other = frontiers(local, without)
    assert list(sizes) == pytest.approx(sorted(size_of(t, x) for t in LAMBDAS for x in THRESHOLDS))
    assert other.value == pytest.approx(3 * own.value) and other.draws == pytest.approx(3 * own.draws)
    with pytest.raises(InputError, match="without a local cache; run the target write_gates"):
        trade_off(validation_rows(), local=False)


def test_figure_12_draws_both_frontiers():
    figure = figure_12(local_cache_rows(), lab=True)
    axes = figure.axes[0]
    with_local, without = axes.get_lines()
    assert with_local.get_label() == "with local cache" and axes.get_yscale() == "log"
    assert list(without.get_ydata()) == pytest.approx([3 * y for y in with_local.get_ydata()])
    assert min(with_local.get_xdata()) == pytest.approx(size_of(0.64, 0.5))
