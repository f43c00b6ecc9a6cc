"""GDN memory: GateSight Figure 1 (half-lives, stability of their order, the slow set of single documents)."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis import observed
from kvrepro.figures.style import BLUE, GREY, ORANGE, PAGE, about, caption, model_title

SLOW = 1000  #: tokens from which on a head is slow (§3.1)


def figure_1(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Half-lives of the heads by layer, their order in pairs of documents, and slow sets against that of all documents.

    Reads the experiments half_lives, order_stability and slow_set.
    """
    lives, pairs, overlap = (
        observed.half_lives(rows),
        observed.stability(rows, "half_life"),
        observed.overlaps(rows),
    )
    figure, panels = plt.subplots(1, 3, figsize=(PAGE, 2.1), layout="constrained", width_ratios=(1.5, 1, 1))
    _half_lives(panels[0], lives)
    panels[1].hist(pairs, bins=12, color=BLUE, alpha=0.8)
    for percentile in np.percentile(pairs, (10, 90)):
        panels[1].axvline(percentile, color="black", linestyle="--", linewidth=0.8)
    panels[1].set_xlabel("Spearman ρ, document pair")
    panels[1].set_ylabel("document pairs")
    _overlaps(panels[2], overlap)
    for axes, letter in zip(panels, "abc", strict=True):
        axes.set_title(f"({letter})", loc="left")
    model = rows["model"].iloc[0]
    figure.suptitle(model_title(model, lab), fontsize=7.5)
    text = (
        f"{about(model, lab)}(a) Median over documents of each head: line and band, median and 10th to 90th percentile "
        f"of a layer's heads; dashed, median of all heads; orange, heads of at least {SLOW:,} tokens. (b) Order of "
        f"all {len(lives)} heads by half-life in {len(pairs)} disjoint random pairs of documents; dashed, 10th and "
        "90th percentile. (c) A dot is a document; bars are medians."
    )
    caption(figure, text, PAGE)
    return figure


def _half_lives(axes: Axes, lives: pd.DataFrame) -> None:
    by_layer = lives.groupby("layer")["median"]
    layers = list(by_layer.groups)
    axes.fill_between(layers, by_layer.quantile(0.1), by_layer.quantile(0.9), color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(layers, by_layer.median(), color=BLUE)
    fast, slow = (lives[(lives["median"] >= SLOW) == side] for side in (False, True))
    axes.scatter(fast["layer"], fast["median"], s=2, color=GREY, linewidths=0)
    axes.scatter(slow["layer"], slow["median"], s=4, color=ORANGE, linewidths=0, zorder=3)
    axes.axhline(lives["median"].median(), color="black", linestyle="--", linewidth=0.8)
    axes.axhline(SLOW, color=ORANGE, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("GDN layer")
    axes.set_ylabel("half-life (tokens)")


def _overlaps(axes: Axes, overlap: dict[float, np.ndarray]) -> None:
    rng = np.random.default_rng(0)  # side by side, so that equal documents can be told apart
    for place, values in enumerate(overlap.values()):
        axes.scatter(place + rng.uniform(-0.2, 0.2, len(values)), values, s=3, color=BLUE, alpha=0.5, linewidths=0)
        middle = np.median(values)
        axes.plot([place - 0.3, place + 0.3], [middle, middle], color="black", linewidth=1.2)
        axes.annotate(f"{middle:.2f}", (place + 0.33, middle), fontsize=6, va="center")
    axes.set_xticks(range(len(overlap)), [f"{threshold:,.0f}" for threshold in overlap])
    axes.set_xlim(-0.6, max(1, len(overlap)) - 0.2)
    axes.set_xlabel("threshold (tokens)")
    axes.set_ylabel("Jaccard")
    axes.set_ylim(-0.02, 1.05)
    if not overlap:
        axes.text(0.5, 0.5, "no head reaches a threshold", transform=axes.transAxes, ha="center", fontsize=6)
