"""Reasoning under a hard budget of the cache: WG-KV Figures 10 (against the budget) and 16 (against λ)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis.accuracy import unanswered_note
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.bounded import Bounded, bounded, steps_right
from kvrepro.analysis.names import TASKS
from kvrepro.figures.overlay import DOTTED, entry, published_note
from kvrepro.figures.style import PAGE, about, caption, look, model_title

PAPERS_TASK, PAPERS_METHOD = "aime25", "snapkv"
GATES = look("wg_kv")


def figure_10(rows: pd.DataFrame, lab: bool = False, published: pd.DataFrame | None = None) -> Figure:
    """(a) Accuracy against the entries that a head holds on average at most: the full cache dashed, WG-KV alone at what
    it held, each eviction method alone and over WG-KV, a line a λ, at its limits. (b) Evictions in an answer (§5.4).

    Reads the accuracy rows of one model on the benchmark reasoning.
    """
    found = bounded(rows)
    published = _of_papers_task(published, found)
    figure, (left, right) = plt.subplots(1, 2, figsize=(PAGE, 2.6), layout="constrained")
    left.axhline(found.accuracy.value[found.full], color="black", linestyle="--", linewidth=0.9, label="full cache")
    alone = found.where(lambda s: s.trade_off is not None and s.budget is None)
    if alone:
        places = sorted(alone, key=lambda i: found.entries.value[i])
        _line(left, found.entries.value[places], found.accuracy, places, GATES.color, GATES.marker, GATES.label)
    for name in found.boundings:
        _under_limits(left, right, found, name, published)
    if published is not None:
        _without_limit(left, published)
    left.set_ylabel("accuracy (%)")
    left.set_ylim(-3, 103)
    right.set_ylabel("evictions an item")
    right.set_ylim(bottom=0)
    for axes, letter in ((left, "a"), (right, "b")):
        axes.set_xlabel("entries a head, at most")
        axes.set_title(f"({letter})", loc="left")
        axes.set_xlim(left=0)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", handlelength=2.5)
    _finish(
        figure, found, rows, lab, f"{published_note(published, 'Dotted and hollow')}WG-KV alone stands at what it held."
    )
    return figure


def _under_limits(left: Axes, right: Axes, found: Bounded, name: str, published: pd.DataFrame | None) -> None:
    """The lines of one eviction method, alone and over each λ, and what was published of the paper's."""
    style = look(name)
    trades = sorted({s.trade_off for s in found.settings if s.bounding == name and s.trade_off is not None})
    for number, trade in enumerate([None, *trades]):
        places = found.where(lambda s, trade=trade: s.bounding == name and s.trade_off == trade)
        if not places:
            continue
        budgets = [found.settings[place].budget for place in places]
        color = style.color if trade is None else _shade(number - 1, len(trades))
        label = style.label if trade is None else f"{GATES.label} (λ = {trade:g}) + {style.label}"
        marker = style.marker if trade is None else "D"
        _line(left, budgets, found.accuracy, places, color, marker, label)
        _line(right, budgets, found.evictions, places, color, marker, label)
        if published is not None and name == PAPERS_METHOD:
            gates = published["trade_off"].isna() if trade is None else published["trade_off"] == trade
            own = published[published["limit"].notna() & gates]
            for axes, column in ((left, "score"), (right, "evictions")):  # hollow, as a limit is one point
                axes.plot(own["limit"], own[column], color=color, marker=marker, markerfacecolor="white", **DOTTED)


def _without_limit(axes: Axes, published: pd.DataFrame) -> None:
    """What was published of the full cache and of write gates alone."""
    free = published[published["limit"].isna()].sort_values("size")
    off = free["trade_off"].isna()
    axes.axhline(free.loc[off, "score"].iloc[0], color="black", **DOTTED)
    axes.plot(free.loc[~off, "size"], free.loc[~off, "score"], color=GATES.color, **DOTTED)
    entry(axes, published)


def _of_papers_task(published: pd.DataFrame | None, found: Bounded) -> pd.DataFrame | None:
    """What was published, which stands beside answers to the same problems alone."""
    return published if found.tasks == (PAPERS_TASK,) else None


def figure_16(rows: pd.DataFrame, lab: bool = False, published: pd.DataFrame | None = None) -> Figure:
    """Accuracy, entries held at most and evictions against λ, "off" without admission: a line without a limit (the
    paper's a) and one for each limit (its b), which the first eviction method of the rows keeps (Appendix K.2).

    Reads the accuracy rows of one model on the benchmark reasoning.
    """
    found = bounded(rows)
    published = _of_papers_task(published, found)
    figure, panels = plt.subplots(1, 3, figsize=(PAGE, 2.4), layout="constrained")
    labels = list(dict.fromkeys(found.settings[i].label for i in found.where(lambda s: True)))
    name = found.boundings[0]
    for number, budget in enumerate([None, *found.budgets]):
        places = found.where(lambda s, b=budget: s.budget == b and s.bounding == (name if b else None))
        x = [labels.index(found.settings[place].label) for place in places]
        color = "black" if budget is None else _shade(number - 1, len(found.budgets))
        label = "no limit" if budget is None else f"{look(name).label}, {budget} a head"
        marker = "o" if budget is None else "sD^vP<>"[(number - 1) % 7]
        quantities = (found.accuracy, found.entries, found.evictions)
        for axes, quantity in zip(panels, quantities[: 2 if budget is None else 3], strict=False):
            _line(axes, x, quantity, places, color, marker, label)
        if published is not None and name == PAPERS_METHOD:
            _along_trade_offs(panels, published, budget, labels, color)
    if published is not None:
        entry(panels[0], published)
    titles = ("accuracy (%)", "entries a head, at most", "evictions an item")
    for axes, title in zip(panels, titles, strict=True):
        axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 5 else 0)
        axes.set_xlabel("λ of the write gates")
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
    panels[0].set_ylim(-3, 103)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", handlelength=2.5)
    _finish(figure, found, rows, lab, f"{published_note(published)}Off: no admission.")
    return figure


def _along_trade_offs(
    panels: Sequence[Axes], published: pd.DataFrame, budget: int | None, labels: list[str], color: str | tuple
) -> None:
    """What was published without a limit or with one, at those λ that were run."""
    limit = published["limit"]
    own = published[limit.isna() if budget is None else limit == budget]
    own = own.assign(label=own["trade_off"].map("{:g}".format, na_action="ignore").fillna("off"))
    own = own[own["label"].isin(labels)]
    x = [labels.index(label) for label in own["label"]]
    for axes, column in zip(panels, ("score", "size", "evictions")[: 2 if budget is None else 3], strict=False):
        axes.plot(x, own[column], color=color, **DOTTED)


def _line(
    axes: Axes, x: Sequence[float], quantity: Estimate, places: list[int], color: str, marker: str, label: str
) -> None:
    low, high = quantity.low[places], quantity.high[places]
    axes.vlines(x, low, high, color=color, alpha=0.4, linewidth=0.9)
    axes.plot(x, quantity.value[places], color=color, marker=marker, label=label)


def _shade(number: int, count: int) -> tuple:
    """One of several colours from dark to light, told apart in grey as well."""
    return plt.get_cmap("viridis")(0.1 + 0.75 * number / max(1, count - 1))


def _finish(figure: Figure, found: Bounded, rows: pd.DataFrame, lab: bool, more: str) -> None:
    """Title and small print, which say what the answers are worth before anything is read into them."""
    model = rows["model"].iloc[0]
    names = ", ".join(TASKS.get(task, task) for task in found.tasks)
    paper = "" if found.tasks == (PAPERS_TASK,) else f" in the place of {TASKS[PAPERS_TASK]}"
    figure.suptitle(f"{model_title(model, lab)}, {names}{paper}", fontsize=7.5)
    steps = steps_right(rows)
    right = "" if math.isnan(steps) else f"It writes {steps:.0f} % of the steps before its first wrong one. "
    note = unanswered_note(rows)
    instead = "Entries and evictions are those of what it writes instead. " if note else ""
    text = (
        f"{about(model, lab)}{note}{right}{instead}The full cache holds {found.entries.value[found.full]:.0f} "
        f"entries a head at the end of an answer. {more} {found.items} item{'s' * (found.items != 1)} a task; bars: "
        f"95 % bootstrap intervals over items. {found.failed} of {found.rows} rows failed a check"
        f"{'; their items are left out' if found.failed else ''}."
    )
    caption(figure, text, PAGE)
