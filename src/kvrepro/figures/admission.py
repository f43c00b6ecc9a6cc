"""What admission holds and what that costs: WG-KV Figures 7 (accuracy), 11 (λ, τ and the held-out loss) and 12 (the
same without a local cache)."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis.accuracy import judged_note, unanswered_note
from kvrepro.analysis.bootstrap import FEW
from kvrepro.analysis.cache_sizes import THRESHOLD, Curves, curves
from kvrepro.analysis.trade_off import TradeOff, lowest_loss, trade_off
from kvrepro.benchmarks import helmet
from kvrepro.figures.overlay import DOTTED, entry, helmet_note, of_tasks, published_note, task_lines
from kvrepro.figures.style import (
    BLUE,
    COLUMN,
    PAGE,
    RED,
    about,
    benchmark_title,
    caption,
    look,
    model_title,
    task_panels,
)

MARKERS = "ovs^D<>px"  #: of thresholds, rising


def figure_7(rows: pd.DataFrame, lab: bool = False, published: pd.DataFrame | None = None) -> Figure:
    """Accuracy in percent against the measured cache size, one line an admission method and the full cache dashed: the
    mean over the tasks and a panel a task (§5.2). Also Figure 14, with the rows of another model.

    Reads the accuracy rows of one model on one benchmark.
    """
    overall = curves(rows)
    published = of_tasks(published, overall.result.tasks)
    figure = task_panels(
        overall.result.tasks, lambda axes, tasks: _against_size(axes, curves(rows, tasks), published), "KV cache size"
    )
    figure.suptitle(title(rows, lab), fontsize=7.5)
    caption(figure, _note(overall, rows, lab, helmet_note(published, rows)), PAGE)
    return figure


def _against_size(axes: Axes, found: Curves, published: pd.DataFrame | None) -> None:
    """The lines of one panel with their intervals."""
    axes.axhline(found.dense.value, color="black", linestyle="--", linewidth=0.9, label="full cache")
    for name, curve in found.curves.items():
        style = look(name)
        low, high = curve.accuracy.low, curve.accuracy.high
        if len(curve.sizes) > 1:
            axes.fill_between(curve.sizes, low, high, color=style.color, alpha=0.15, linewidth=0)
        else:  # a band of one point would not be seen
            axes.vlines(curve.sizes, low, high, color=style.color, alpha=0.4, linewidth=0.9)
        axes.plot(curve.sizes, curve.accuracy.value, color=style.color, marker=style.marker, label=style.label)
    task_lines(axes, published, found.result.tasks, found.curves)
    axes.set_xlim(0, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "", "0.5", "", "1"])


def papers(rows: pd.DataFrame) -> bool:
    """Whether rows are of the paper's benchmark or of stand-ins for it, which their title names."""
    return rows["experiment"].iloc[0] == helmet.BENCHMARK


def title(rows: pd.DataFrame, lab: bool) -> str:
    """Model and benchmark of a figure that the paper has on HELMET."""
    return f"{model_title(rows['model'].iloc[0], lab)}, {benchmark_title(rows)}" + (
        "" if papers(rows) else " in the place of HELMET"
    )


def _note(found: Curves, rows: pd.DataFrame, lab: bool, beside: str) -> str:
    model, result = rows["model"].iloc[0], found.result
    pooled = "" if result.units >= FEW else ", those of the mean over items of all tasks resampled together"
    other = "" if papers(rows) else "The paper's curves are on HELMET. "
    return (
        f"{about(model, lab)}{other}{judged_note(rows)}{unanswered_note(rows)}{beside}Cache size: entries held after "
        "the context over those of the full cache, mean over items. WG-KV: one point a λ at "
        f"τ = {THRESHOLD:g}; Local Attention varies its window, DuoAttention the share of retrieval heads. "
        f"{len(result.tasks)} task{'s' * (len(result.tasks) != 1)} of {result.items} item{'s' * (result.items != 1)}; "
        f"bands: 95 % bootstrap intervals over {result.resampled}{pooled}. {result.left_out()}"
    )


def figure_11(rows: pd.DataFrame, lab: bool = False, published: pd.DataFrame | None = None) -> Figure:
    """(a) Distillation loss on held-out rows against the normalised cache size, one line a λ through its thresholds τ,
    that of the paper filled; (b) cache size against λ, one line a τ (Appendix F).

    Reads the experiment write_gate_validation of one model.
    """
    found = trade_off(rows)
    figure, (left, right) = plt.subplots(1, 2, figsize=(PAGE, 2.6), layout="constrained")
    _losses(left, found, published)
    _sizes(right, found, published)
    for axes, letter in zip((left, right), "ab", strict=True):
        axes.set_title(f"({letter})", loc="left")
    model = rows["model"].iloc[0]
    figure.suptitle(f"{model_title(model, lab)}, held-out rows", fontsize=7.5)
    text = (
        f"{about(model, lab)}Gates binarised at τ; loss: mean squared difference of the final hidden states from those "
        f"of full attention, mean over {found.rows} held-out rows; bars and bands: 95 % bootstrap intervals over "
        f"rows. {published_note(published)}(a) Filled: τ = {THRESHOLD:g}."
    )
    caption(figure, text, PAGE)
    return figure


def figure_12(rows: pd.DataFrame, lab: bool = False, published: pd.DataFrame | None = None) -> Figure:
    """Distillation loss on held-out rows against the normalised cache size, with a local cache and without: every λ and
    τ, and the frontier that each reaches (Appendix G).

    Reads the experiment write_gate_validation of one model, of gates with the recipe's window and of such without.
    """
    local, without = trade_off(rows), trade_off(rows, local=False)
    figure, axes = plt.subplots(figsize=(COLUMN, 2.6), layout="constrained")
    for found, kind, color, marker in ((local, True, BLUE, "o"), (without, False, RED, "^")):
        size, loss = found.size.value, found.loss.value
        label = "with local cache" if kind else "without local cache"
        _frontier(axes, size, loss, color=color, label=label)
        if published is not None:
            own = published[published["local"] == kind]
            _frontier(axes, own["size"].to_numpy(), own["loss"].to_numpy(), color=color, **DOTTED)
        filled = [color if point[1] == THRESHOLD else "white" for point in found.points]
        axes.vlines(size, found.loss.low, found.loss.high, color=color, linewidth=0.6)
        axes.hlines(loss, found.size.low, found.size.high, color=color, linewidth=0.6)
        axes.scatter(size, loss, s=14, marker=marker, edgecolors=color, facecolors=filled, linewidths=0.9, zorder=3)
    if published is not None:
        entry(axes, published)
    axes.set_yscale("log")
    axes.set_xlim(0, 1.03)
    axes.set_xlabel("normalised KV cache size")
    axes.set_ylabel("distillation loss")
    axes.legend(loc="upper right", handlelength=1.5)
    model = rows["model"].iloc[0]
    axes.set_title(f"{model_title(model, lab)}, held-out rows")
    trades = [", ".join(f"{x:g}" for x in found.lambdas) for found in (local, without)]
    text = (
        f"{about(model, lab)}Points: λ of {trades[0]} with the local cache, gates trained anew with λ of {trades[1]} "
        f"without, each at τ of {', '.join(f'{x:g}' for x in local.thresholds)} (filled: {THRESHOLD:g}). Lines: the "
        f"lowest loss that points or mixtures of two of them reach. {published_note(published)}Mean over {local.rows} "
        "held-out rows; bars: 95 % bootstrap intervals over rows."
    )
    caption(figure, text, COLUMN)
    return figure


def _frontier(axes: Axes, size: np.ndarray, loss: np.ndarray, **style: Any) -> None:
    at = np.linspace(size.min(), size.max(), 200)
    axes.plot(at, [lowest_loss(size, loss, x) for x in at], **style)


def _colors(count: int) -> list:
    """Colours of rising values, dark to light, told apart in grey as well."""
    return list(plt.get_cmap("viridis")(np.linspace(0, 0.85, count)))


def _losses(axes: Axes, found: TradeOff, published: pd.DataFrame | None) -> None:
    for color, trade in zip(_colors(len(found.lambdas)), found.lambdas, strict=True):
        places = found.of(trade)
        axes.plot(found.size.value[places], found.loss.value[places], color=color, label=f"λ = {trade:g}")
        for place in places:
            threshold = found.points[place][1]
            x, y = found.size.value[place], found.loss.value[place]
            axes.errorbar(
                x,
                y,
                xerr=[[max(0.0, x - found.size.low[place])], [max(0.0, found.size.high[place] - x)]],
                yerr=[[max(0.0, y - found.loss.low[place])], [max(0.0, found.loss.high[place] - y)]],
                color=color,
                elinewidth=0.6,
                marker=MARKERS[found.thresholds.index(threshold) % len(MARKERS)],
                markerfacecolor=color if threshold == THRESHOLD else "white",
            )
        if published is not None:
            line = published[published["trade_off"] == trade]
            axes.plot(line["size"], line["loss"], color=color, **DOTTED)
    if published is not None:
        entry(axes, published)
    axes.set_yscale("log")
    axes.set_xlim(0, 1.03)
    axes.set_xlabel("normalised KV cache size")
    axes.set_ylabel("distillation loss")
    axes.legend(loc="upper right", handlelength=1.5)


def _sizes(axes: Axes, found: TradeOff, published: pd.DataFrame | None) -> None:
    for number, threshold in enumerate(found.thresholds):
        places = found.along(threshold)
        trades = [found.points[place][0] for place in places]
        color = _colors(len(found.thresholds))[number]
        axes.fill_between(trades, found.size.low[places], found.size.high[places], color=color, alpha=0.15, linewidth=0)
        axes.plot(
            trades,
            found.size.value[places],
            color=color,
            marker=MARKERS[number % len(MARKERS)],
            markerfacecolor=color if threshold == THRESHOLD else "white",
            label=f"τ = {threshold:g}",
        )
        if published is not None:
            line = published[(published["threshold"] == threshold) & published["trade_off"].isin(found.lambdas)]
            axes.plot(line["trade_off"], line["size"], color=color, **DOTTED)
    axes.set_xscale("log")
    axes.set_xticks(found.lambdas, [f"{trade:g}" for trade in found.lambdas])
    axes.minorticks_off()
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("λ")
    axes.set_ylabel("normalised KV cache size")
    axes.legend(loc="upper right", handlelength=1.5)
