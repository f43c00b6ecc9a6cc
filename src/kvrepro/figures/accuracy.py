"""Accuracy under eviction: GateSight Figure 4 (means over tasks) and Figure 11 (every task)."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis.accuracy import Accuracy, accuracy, methods
from kvrepro.analysis.bootstrap import FEW
from kvrepro.figures.style import COLUMN, PAGE, caption, look, model_title
from kvrepro.results import DENSE


def figure_4b(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Accuracy in percent against the kept fraction, mean over the tasks, one line a method, the unpruned model dashed.

    Reads method, budget, task, item, metric, value, n_tokens, ok and failed_checks of one model's accuracy rows.
    """
    result = accuracy(rows)
    figure, axes = plt.subplots(figsize=(COLUMN, 2.5), layout="constrained")
    _lines(axes, result, methods(rows))
    _axes(axes, result)
    axes.set_ylabel("accuracy (%)")
    axes.set_title(f"{model_title(rows['model'].iloc[0], lab)}, RULER {_length(rows)}")
    axes.legend(loc="lower right")
    caption(figure, _note(result, rows, lab), COLUMN)
    return figure


def figure_11(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """The panels of Figure 4b task by task, in the order of the rows."""
    overall = accuracy(rows)
    tasks = overall.tasks
    columns = min(5, len(tasks))
    lines = math.ceil((len(tasks) + 1) / columns)  # one more for the legend
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(PAGE, 1.35 * lines + 0.3),
        layout="constrained",
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    panels = list(grid.flat)
    for axes, task in zip(panels, tasks, strict=False):
        result = accuracy(rows, [task])
        _lines(axes, result, methods(rows))
        _axes(axes, result)
        axes.set_title(task, fontsize=6.5)
        axes.tick_params(labelbottom=True)
        axes.set_ylim(-3, 103)
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy (%)")
    for axes in panels[len(tasks) :]:
        axes.axis("off")
    panels[len(tasks)].legend(*panels[0].get_legend_handles_labels(), loc="center", handlelength=2.5)
    for axes in panels[:-columns]:
        axes.set_xlabel("")
    figure.suptitle(f"{model_title(rows['model'].iloc[0], lab)}, RULER {_length(rows)} by task", fontsize=7.5)
    caption(figure, _note(overall, rows, lab, panels=True), PAGE)
    return figure


def _lines(axes: Axes, result: Accuracy, names: list[str]) -> None:
    """One line with its intervals per method, and the unpruned model as a dashed line."""
    table = result.table()
    dense = table[table["method"] == DENSE]
    if len(dense):
        axes.axhline(dense["accuracy"].iloc[0], color="black", linestyle="--", linewidth=0.9, label=look(DENSE).label)
    for name in names:
        line = table[table["method"] == name].sort_values("budget")
        style = look(name)
        axes.fill_between(line["budget"], line["low"], line["high"], color=style.color, alpha=0.15, linewidth=0)
        axes.plot(
            line["budget"],
            line["accuracy"],
            color=style.color,
            marker=style.marker,
            label=style.label,
            zorder=3 if name == "gatesight" else 2,
        )


def _axes(axes: Axes, result: Accuracy) -> None:
    axes.set_xlabel("kept fraction")
    axes.set_xlim(0.05, 1.05)
    axes.set_xticks([0.1, 0.4, 0.7, 1.0])
    low = result.table()["low"].min()
    axes.set_ylim(max(-3, low - 5), 103)


def _length(rows: pd.DataFrame) -> str:
    """Longest context in round numbers of tokens."""
    return f"{int(math.ceil(rows['n_tokens'].max() / 512) * 512):,}".replace(",", "")


def _note(result: Accuracy, rows: pd.DataFrame, lab: bool, panels: bool = False) -> str:
    model = rows["model"].iloc[0]
    who = f"{model} is a small model trained for this suite; its accuracies are not the paper's. " if lab else ""
    tasks = f"{len(result.tasks)} tasks" if len(result.tasks) > 1 else "one task"
    pooled = "" if result.items >= FEW or panels else ", items of all tasks resampled together"
    return (
        f"{who}{tasks} of {result.items} item{'s' * (result.items != 1)}; bands: 95 % bootstrap intervals over "
        f"items{pooled}. {result.left_out()}"
    )
