"""What signals tell of utility: GateSight Figures 2 (summaries, layers, deciles, lengths), 6 (single heads) and 7 (GDN
layers)."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis import observed, summary
from kvrepro.analysis.names import SUMMARIES
from kvrepro.figures.style import BLUE, COLUMN, GREEN, GREY, ORANGE, PAGE, RED, about, caption, look, model_title
from kvrepro.figures.style import PREDICTORS as LOOKS

PANELS = 4  #: attention layers that Figure 6 shows, at equal depths (15, 31, 47 and 63 of 64)
CUT = 0.1  #: correlation above which Figure 6 counts a cell


def figure_2(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Summaries of the signals against utility: by corpus, by attention layer, by decile, and by document length.

    Reads the experiments predictors, deciles and lengths.
    """
    found = summary.predictor_rows_of(rows)
    figure, panels = plt.subplots(2, 2, figsize=(PAGE, 3.9), layout="constrained")
    _summaries(panels[0, 0], found)
    _depth(panels[0, 1], found)
    _deciles(panels[1, 0], rows)
    _lengths(panels[1, 1], rows)
    for axes, letter in zip(panels.flat, "abcd", strict=True):
        axes.set_title(f"({letter})", loc="left")
    model = rows["model"].iloc[0]
    figure.suptitle(model_title(model, lab), fontsize=7.5)
    text = (
        f"{about(model, lab)}Mean over KV heads and, but for (b), attention layers, of {summary.documents(found)} "
        "documents; bars and bands: 95 % bootstrap intervals over documents. (a) Window means; index s: slow heads. "
        "(b) Effective write. (c) Slow-head β‖v‖: share of a decile's entries in the tenth with the highest and the "
        "lowest utility, over 10 %. (d) Slow-head β‖v‖ with the same slow set on longer documents and RULER contexts."
    )
    caption(figure, text, PAGE)
    return figure


def _summaries(axes: Axes, found: pd.DataFrame) -> None:
    mean = summary.estimate(found, "spearman", list(SUMMARIES))
    part = found[(found["metric"] == "spearman") & found["method"].isin(SUMMARIES)]
    corpora = part.groupby(["method", "task"])["value"].mean()
    for place, name in enumerate(SUMMARIES):
        values = corpora.get(name, pd.Series(dtype=float)).to_numpy()
        axes.scatter(np.full(len(values), place), values, s=6, color=BLUE, alpha=0.6, linewidths=0)
        level = mean.value[place]
        errors = [[max(0, level - mean.low[place])], [max(0, mean.high[place] - level)]]
        axes.errorbar(place, level, yerr=errors, color="black", marker="_", markersize=12, elinewidth=0.8)
        axes.annotate(f"{level:.2f}", (place + 0.15, level), fontsize=6, va="bottom")
    axes.set_xticks(range(len(SUMMARIES)), SUMMARIES.values())
    axes.axhline(0, color="0.6", linewidth=0.6)
    axes.set_ylabel("Spearman ρ with U")
    axes.plot([], [], color="black", marker="_", linestyle="", label="mean")
    axes.scatter([], [], s=6, color=BLUE, label="a corpus")
    axes.legend(loc="best")


def _depth(axes: Axes, found: pd.DataFrame) -> None:
    table = summary.per_layer(found[found["method"].isin(("write", "write_slow"))], "spearman")
    for name, label, color in (("write_slow", "slow heads", GREEN), ("write", "all heads", GREY)):
        line = table[table["method"] == name].sort_values("layer")
        axes.fill_between(line["layer"], line["low"], line["high"], color=color, alpha=0.2, linewidth=0)
        axes.plot(line["layer"], line["value"], color=color, marker="o", label=label)
    axes.axhline(0, color="0.6", linewidth=0.6)
    axes.set_xticks(sorted(table["layer"].unique()))
    axes.set_xlabel("attention layer")
    axes.set_ylabel("Spearman ρ with U")
    axes.legend(loc="best")


def _deciles(axes: Axes, rows: pd.DataFrame) -> None:
    for end, label, color in (("top", "top 10%", RED), ("bottom", "bottom 10%", BLUE)):
        rates = observed.deciles(rows, end).map(lambda x: x / 10)
        place = np.arange(1, len(rates.value) + 1)
        axes.fill_between(place, rates.low, rates.high, color=color, alpha=0.2, linewidth=0)
        axes.plot(place, rates.value, color=color, marker="o", label=label)
    axes.axhline(1, color="0.6", linewidth=0.6)
    axes.set_xlabel("decile of slow-head β‖v‖")
    axes.set_ylabel("lift over chance")
    axes.legend(loc="best")


def _lengths(axes: Axes, rows: pd.DataFrame) -> None:
    known = observed.sets(rows)
    for place, name in enumerate(known):
        found = observed.lengths(rows, "spearman", ["write_slow"], name)
        level = found.value[0]
        errors = [[max(0, level - found.low[0])], [max(0, found.high[0] - level)]]
        axes.bar(place, level, color=GREEN, alpha=0.7, width=0.6)
        axes.errorbar(place, level, yerr=errors, color="black", elinewidth=0.8)
    axes.axhline(0, color="0.6", linewidth=0.6)
    axes.set_xticks(range(len(known)), [f"{name.replace('_', ' ')}\nn={n}" for name, n in known.items()])
    axes.set_ylabel("ρ with U, slow-head β‖v‖")


def figure_6(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Correlation with utility of each head of the window before four attention layers at equal depths; heads are
    sorted by their mean over the window. Reads the experiment cells."""
    places, estimate = observed.cells(rows)
    layers = sorted(places["layer"].unique())
    chosen = sorted({layers[math.ceil(q * len(layers) / PANELS) - 1] for q in range(1, PANELS + 1)})
    shares = dict(zip(layers, observed.share_above(places, estimate, CUT).value, strict=True))
    table = places.assign(value=estimate.value)
    limit = max(0.05, abs(table.loc[table["layer"].isin(chosen), "value"]).max())
    figure, panels = plt.subplots(1, len(chosen), figsize=(PAGE, 1.8), layout="constrained", squeeze=False)
    for axes, layer in zip(panels[0], chosen, strict=True):
        wide = table[table["layer"] == layer].pivot_table(index="gdn_layer", columns="head", values="value")
        wide = wide[wide.mean().sort_values(ascending=False).index]
        image = axes.imshow(wide, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, origin="lower")
        axes.set_yticks(range(len(wide)), wide.index)
        axes.set_xticks([0, wide.shape[1] - 1], [1, wide.shape[1]])
        axes.grid(False)
        axes.set_xlabel("GDN head, sorted")
        axes.set_title(f"layer {layer}: {shares[layer]:.0f} % of cells |ρ| > {CUT:g}", fontsize=6.5)
    panels[0, 0].set_ylabel("GDN layer")
    figure.colorbar(image, ax=panels[0, -1], label="Spearman(β‖v‖, U)")
    model = rows["model"].iloc[0]
    figure.suptitle(model_title(model, lab), fontsize=7.5)
    text = (
        f"{about(model, lab)}Correlation of each head of the estimator's window with the utility of an attention "
        "layer's entries, mean over KV heads and documents."
    )
    caption(figure, text, PAGE)
    return figure


def figure_7(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """The GDN layer whose effective write correlates most with the utility of each attention layer, and the window of
    the estimator. Reads the experiment layer_writes."""
    places, estimate = observed.layer_writes(rows)
    names, best, _ = observed.best_layers(places, estimate)
    near = places[places["in_window"].astype(bool)].groupby("layer")["gdn_layer"]
    figure, axes = plt.subplots(figsize=(COLUMN, 2.2), layout="constrained")
    for layer in names:
        low, high = near.min()[layer], near.max()[layer]
        axes.plot([layer, layer], [low, high], color=ORANGE, linewidth=6, alpha=0.35, solid_capstyle="butt")
    axes.plot([], [], color=ORANGE, linewidth=6, alpha=0.35, label="estimator's window")
    style = look("write_slow", LOOKS)
    axes.plot(names, best.value, color=BLUE, marker=style.marker, linestyle="", label="highest correlation")
    axes.set_xticks(names)
    axes.set_xlabel("attention layer")
    axes.set_ylabel("GDN layer")
    axes.legend(loc="upper left")
    model = rows["model"].iloc[0]
    axes.set_title(model_title(model, lab))
    text = (
        f"{about(model, lab)}Effective write β‖v‖ averaged over the heads of a GDN layer; correlation "
        "averaged over KV heads and documents."
    )
    caption(figure, text, COLUMN)
    return figure
