"""Accuracy under eviction: GateSight Figure 4 (means over tasks) and Figures 9 to 12 (every task), on any benchmark."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis.accuracy import Accuracy, accuracy, cut_note, methods, unanswered_note
from kvrepro.analysis.bootstrap import FEW
from kvrepro.analysis.names import LAB_LABELS
from kvrepro.figures.style import (
    COLUMN,
    METHODS,
    PAGE,
    Look,
    about,
    benchmark_title,
    caption,
    look,
    model_title,
    panel_grid,
)
from kvrepro.results import DENSE


def mean_accuracy(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Accuracy in percent against the kept fraction, mean over the tasks, one line a method, the unpruned model dashed.

    Reads experiment, method, budget, task, item, metric, value, n_tokens, ok and failed_checks of one model's accuracy
    rows on one benchmark.
    """
    result = accuracy(rows)
    figure, axes = plt.subplots(figsize=(COLUMN, 2.7), layout="constrained")
    lines(axes, result, methods(rows))
    kept_axis(axes, result)
    axes.set_ylabel("accuracy (%)")
    axes.set_title(f"{model_title(rows['model'].iloc[0], lab)}, {benchmark_title(rows)}")
    figure.legend(loc="outside upper center", ncols=4, columnspacing=1.2, handlelength=1.6)
    caption(figure, _note(result, rows, lab), COLUMN)
    return figure


def task_accuracy(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """The lines of :func:`mean_accuracy` task by task, in the order of the rows."""
    overall = accuracy(rows)
    tasks = overall.tasks
    figure, grid = panel_grid(len(tasks), 0.3)
    columns = grid.shape[1]
    panels = list(grid.flat)
    for axes, task in zip(panels, tasks, strict=False):
        result = accuracy(rows, [task])
        lines(axes, result, methods(rows))
        kept_axis(axes, result)
        axes.set_title(task, fontsize=6.5)
        axes.tick_params(labelbottom=True)
        axes.set_ylim(-3, 103)
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy (%)")
    for axes in panels[len(tasks) :]:
        axes.axis("off")
    panels[len(tasks)].legend(*panels[0].get_legend_handles_labels(), loc="center", handlelength=2.5)
    for axes in panels[: len(tasks) - columns] if len(tasks) > columns else ():  # those with a panel below
        axes.set_xlabel("")
    figure.suptitle(f"{model_title(rows['model'].iloc[0], lab)}, {benchmark_title(rows)} by task", fontsize=7.5)
    caption(figure, _note(overall, rows, lab, panels=True), PAGE)
    return figure


figure_4a = figure_4b = mean_accuracy  # the benchmark is that of the rows
figure_9 = figure_11 = task_accuracy  # and Figures 10 and 12 for a tier's second model


def lines(axes: Axes, result: Accuracy, names: list[str], known: dict[str, Look] = METHODS) -> None:
    """One line with its intervals per method, looking as in ``known``, and the unpruned model as a dashed line."""
    table = result.table()
    dense = table[table["method"] == DENSE]
    if len(dense):
        axes.axhline(dense["accuracy"].iloc[0], color="black", linestyle="--", linewidth=0.9, label=look(DENSE).label)
    for name in names:
        line = table[table["method"] == name].sort_values("budget")
        style = look(name, known)
        axes.fill_between(line["budget"], line["low"], line["high"], color=style.color, alpha=0.15, linewidth=0)
        axes.plot(
            line["budget"],
            line["accuracy"],
            color=style.color,
            marker=style.marker,
            label=style.label,
            zorder=3 if name == "gatesight" else 2,
        )


def kept_axis(axes: Axes, result: Accuracy) -> None:
    """The axis of kept fractions, and of percent as far down as the lines go."""
    axes.set_xlabel("kept fraction")
    axes.set_xlim(0.05, 1.05)
    axes.set_xticks([0.1, 0.4, 0.7, 1.0])
    low = result.table()["low"].min()
    axes.set_ylim(max(-3, low - 5), 103)


def _note(result: Accuracy, rows: pd.DataFrame, lab: bool, panels: bool = False) -> str:
    model = rows["model"].iloc[0]
    who = f"{about(model, lab)}Its accuracies are not the paper's. " if lab else ""
    who += f"{LAB_LABELS} " if lab and "gatesight" in set(rows["method"]) else ""
    tasks = f"{len(result.tasks)} tasks" if len(result.tasks) > 1 else "one task"
    pooled = "" if result.units >= FEW or panels else ", items of all tasks resampled together"
    return (
        f"{who}{tasks} of {result.items} item{'s' * (result.items != 1)}; bands: 95 % bootstrap intervals over "
        f"{result.resampled}{pooled}. {cut_note(rows)}{unanswered_note(rows)}{result.left_out()}"
    )
