"""Budget rules compared on the same scores: GateSight Figure 13."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from kvrepro.analysis.accuracy import accuracy
from kvrepro.analysis.names import ABLATION_LEAST, ABLATION_TASKS, ALLOCATION_ABLATION, ALLOCATIONS
from kvrepro.errors import InputError
from kvrepro.figures.accuracy import kept_axis, lines
from kvrepro.figures.style import BLUE, GREEN, ORANGE, PAGE, Look, about, caption, model_title

LOOKS = {
    name: Look(ALLOCATIONS[name], color, marker)
    for name, color, marker in zip(ALLOCATION_ABLATION, (BLUE, ORANGE, GREEN), "os^", strict=True)
}


def figure_13(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Accuracy against the kept fraction under three budget rules, a panel a task. Reads the experiment budgets."""
    found = rows[(rows["experiment"] == "budgets") & rows["method"].isin(ALLOCATION_ABLATION)] if len(rows) else rows
    found = found[found["budget"] >= ABLATION_LEAST] if len(found) else found
    tasks = [task for task in ABLATION_TASKS if len(found) and task in set(found["task"])]
    if not tasks:
        raise InputError("there are no rows of the allocation ablation; run the target budgets.")
    columns = min(3, len(tasks))
    height = math.ceil(len(tasks) / columns)
    figure, grid = plt.subplots(
        height, columns, figsize=(PAGE, 1.6 * height + 0.4), layout="constrained", squeeze=False, sharex=True
    )
    for axes, task in zip(grid.flat, tasks, strict=False):
        result = accuracy(found, [task])
        lines(axes, result, list(LOOKS), LOOKS)
        kept_axis(axes, result)
        axes.set_title(task)
    for axes in list(grid.flat)[len(tasks) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy (%)")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(model_title(rows["model"].iloc[0], lab), fontsize=7.5)
    whole = accuracy(found, tasks)
    text = (
        f"{about(rows['model'].iloc[0], lab)}The same scores of GateSight's estimators and the same number of entries "
        f"under three budget rules, {whole.items} item{'s' * (whole.items != 1)} a task; bands: 95 % bootstrap "
        f"intervals over items. {whole.left_out()}"
    )
    caption(figure, text, PAGE)
    return figure
