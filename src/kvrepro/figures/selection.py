"""Selection alone and over an admitted cache: WG-KV Figure 9."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis.accuracy import judged_note, unanswered_note
from kvrepro.analysis.bootstrap import FEW
from kvrepro.analysis.selected import Selected, selected
from kvrepro.figures.admission import papers, title
from kvrepro.figures.overlay import helmet_note, of_tasks, task_lines
from kvrepro.figures.style import PAGE, about, caption, look, task_panels
from kvrepro.results import DENSE


def figure_9(rows: pd.DataFrame, lab: bool = False, published: pd.DataFrame | None = None) -> Figure:
    """Accuracy in percent against the entries that a decoding token reads, log scale, one line for Quest on the full
    cache and one on what WG-KV admitted, the full cache dashed: the mean over the tasks and a panel a task (§5.4).

    Reads the accuracy rows of one model on one benchmark.
    """
    overall = selected(rows)
    published = of_tasks(published, overall.result.tasks)
    figure = task_panels(
        overall.result.tasks, lambda axes, tasks: _against_read(axes, selected(rows, tasks), published), "entries read"
    )
    figure.suptitle(title(rows, lab), fontsize=7.5)
    caption(figure, _note(overall, rows, lab, helmet_note(published, rows)), PAGE)
    return figure


def _against_read(axes: Axes, found: Selected, published: pd.DataFrame | None) -> None:
    table = found.result.table()
    dense = table.loc[table["method"] == DENSE, "accuracy"]
    axes.axhline(dense.iloc[0], color="black", linestyle="--", linewidth=0.9, label="full cache")
    for name in found.held:
        line, style = table[table["method"] == name], look(name)
        axes.fill_between(line["budget"], line["low"], line["high"], color=style.color, alpha=0.15, linewidth=0)
        axes.plot(line["budget"], line["accuracy"], color=style.color, marker=style.marker, label=style.label)
    task_lines(axes, published, found.result.tasks, found.held)
    axes.set_xscale("log", base=2)
    budgets = sorted(table.loc[table["method"] != DENSE, "budget"].unique())
    if published is not None:  # the paper's contexts may be many times as long
        budgets += [tick for tick in (4**n for n in range(16)) if budgets[-1] < tick < published["size"].max()]
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axes.minorticks_off()


def _note(found: Selected, rows: pd.DataFrame, lab: bool, beside: str) -> str:
    result = found.result
    stored = ", ".join(f"{look(name).label} {100 * share:.0f} %" for name, share in found.held.items())
    pooled = "" if result.units >= FEW else ", those of the mean over items of all tasks resampled together"
    other = "" if papers(rows) else "The paper's curves are on HELMET. "
    return (
        f"{about(rows['model'].iloc[0], lab)}{other}{judged_note(rows)}{unanswered_note(rows)}{beside}Entries that a "
        "decoding token reads per KV head at most, local ones included; context and question are prefilled without "
        f"selection. Stored, of the full cache: {stored}. {len(result.tasks)} task{'s' * (len(result.tasks) != 1)} of "
        f"{result.items} item{'s' * (result.items != 1)}; bands: 95 % bootstrap intervals over "
        f"{result.resampled}{pooled}. {result.left_out()}"
    )
