"""How caches grow, which tokens heads attend to, and what they admit: WG-KV Figures 2b, 3 and 13."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis.patterns import (
    ADMISSION,
    BOTH,
    EVICTION,
    FULL,
    GROWTH,
    PRIMITIVES,
    SIZES,
    Trace,
    curves,
    growth,
    of,
    sizes,
    traces,
    variation,
)
from kvrepro.figures.style import BLUE, COLUMN, ORANGE, PAGE, about, caption, look, model_title


def figure_2b(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Entries held per KV head against the tokens of a document: bounded by eviction, alone above and with admission
    below, shaded, and without the bound, dashed (§2.2; a sketch in the paper).

    Reads the experiment cache_growth of one model.
    """
    lines, model = curves(rows), rows["model"].iloc[0]
    settings = of(rows, GROWTH)
    budget = settings.loc[settings["method"] == EVICTION, "bounding"].iloc[0]["budget"]
    evictions = dict(zip(PRIMITIVES, growth(rows, "evictions").value, strict=True))
    figure, panels = plt.subplots(2, 1, figsize=(COLUMN, 3.2), layout="constrained", sharex=True)
    for axes, free, bound, color in zip(panels, (FULL, ADMISSION), (EVICTION, BOTH), (ORANGE, BLUE), strict=True):
        axes.plot(*lines[free], color="0.4", linestyle="--", linewidth=0.9, label=look(free).label)
        axes.plot(*lines[bound], color=color, label=f"{look(bound).label}, {evictions[bound]:.3g} evictions")
        axes.fill_between(*lines[bound], color=color, alpha=0.15, linewidth=0)
        axes.axhline(budget, color="black", linewidth=0.6, linestyle=":")
        axes.set_ylim(0, 1.6 * budget)
        axes.set_ylabel("entries per KV head")
        axes.legend(loc="upper left", handlelength=2)
    panels[1].set_xlabel("tokens")
    figure.suptitle(f"{model_title(model, lab)}, {settings['task'].iloc[0].rsplit(' ', 1)[0]}", fontsize=7.5)
    text = (
        f"{about(model, lab)}Measured over the first of {settings['task'].nunique()} documents; evictions are the mean "
        f"over all of them. The paper's figure is a sketch. Dotted: the limit, {budget} entries a head over the model. "
        "The shaded area is the number of entries attended to."
    )
    caption(figure, text, COLUMN)
    return figure


def figure_3(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Attention of later queries to two tokens, log scale, a panel for each of two heads of which each attends to the
    token that the other one ignores (§2.3).

    Reads the experiment token_trace of one model.
    """
    lines, model = traces(rows), rows["model"].iloc[0]
    heads = list(dict.fromkeys((line.layer, line.head) for line in lines))
    figure, panels = plt.subplots(1, len(heads), figsize=(PAGE, 2.2), layout="constrained", sharey=True)
    for axes, head in zip(panels, heads, strict=True):
        own = [line for line in lines if (line.layer, line.head) == head]
        for line, color in zip(own, (BLUE, ORANGE), strict=True):
            _trace(axes, line, color)
        axes.set_title(f"layer {head[0]}, query head {head[1]}")
        axes.set_xlabel("query")
    panels[0].set_ylabel("attention weight")
    panels[0].legend(loc="upper right")
    corpus = of(rows, "token_trace")["task"].iloc[0]
    figure.suptitle(f"{model_title(model, lab)}, a document of {corpus}", fontsize=7.5)
    queries = "a query" if lines[0].width == 1 else f"the mean over {lines[0].width} queries"
    text = (
        f"{about(model, lab)}Heads and tokens are those that show the contrast best, not the paper's, whose sample is "
        f"not published. Shaded: the local window of {lines[0].window} tokens after each of them. A point is {queries}."
    )
    caption(figure, text, PAGE)
    return figure


def _trace(axes: Axes, line: Trace, color: str) -> None:
    axes.axvspan(line.token, line.token + line.window, color=color, alpha=0.12, linewidth=0)
    axes.plot(line.queries, line.attention.clip(1e-7), color=color, linewidth=0.8, label=f"token {line.token}")
    axes.set_yscale("log")


def figure_13(rows: pd.DataFrame, lab: bool = False, published: pd.DataFrame | None = None) -> Figure:
    """Normalised cache size of every layer and KV head, a heat map for each kind of context (Appendix H), and beside
    them the paper's.

    Reads the experiment head_sizes of one model.
    """
    found = {kind: size.value for kind, size in sizes(rows).items()}
    model, settings = rows["model"].iloc[0], of(rows, SIZES)
    if published is not None:
        for kind, part in published.groupby("task", sort=False):
            found[f"published\n{kind}"] = part.pivot(index="layer", columns="head", values="size").to_numpy()
    width = COLUMN * 1.4 if published is None else PAGE
    figure, panels = plt.subplots(1, len(found), figsize=(width, 2.4), layout="constrained", sharey=True)
    for axes, (kind, size) in zip(panels, found.items(), strict=True):
        image = axes.imshow(size, vmin=0, vmax=1, cmap="viridis", aspect="auto", interpolation="nearest")
        axes.set_title(f"{kind}: mean {size.mean():.2f}, CV {variation(size):.2f}", fontsize=6.5)
        axes.set_xlabel("KV head")
        axes.grid(visible=False)
    panels[0].set_ylabel("attention layer")
    figure.colorbar(image, ax=panels, label="normalised KV cache size", pad=0.02)
    figure.suptitle(f"{model_title(model, lab)}, λ = {settings['lambda'].iloc[0]:g}", fontsize=7.5)
    numbers = settings.groupby("task", sort=False)["item"].nunique()
    contexts = ", ".join(f"{number} contexts of {kind}" for kind, number in numbers.items())
    theirs = "" if published is None else " Published: of one sample each."
    text = (
        f"{about(model, lab)}The paper compares code with HTML to TSV. Mean over {contexts}, "
        f"{settings['tokens'].iloc[0]} tokens each. Entries held over tokens, the local window of "
        f"{settings['window'].iloc[0]} included; gates binarised at τ = {settings['threshold'].iloc[0]:g}. "
        f"CV: coefficient of variation over layers and heads.{theirs}"
    )
    caption(figure, text, width)
    return figure
