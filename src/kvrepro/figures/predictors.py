"""Predictors of utility: GateSight Figure 5 (an example document) and Figure 8 (layer by layer)."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from kvrepro.analysis import summary
from kvrepro.errors import InputError
from kvrepro.figures.style import BLUE, COLUMN, GREEN, PAGE, PREDICTORS, caption, look, model_title


def figure_5(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Utility and slow-head write of the median document along its tokens, each scaled to its maximum after the first.

    Reads method, options, task, item (the position) and value of the experiment ``example_document``.
    """
    example = rows[(rows["experiment"] == "example_document") & (rows["metric"] == "trace")]
    if example.empty:
        raise InputError("there are no rows of the example document; run the target estimators.")
    options = json.loads(example["options"].iloc[0])
    figure, panels = plt.subplots(2, 1, figsize=(COLUMN, 2.2), layout="constrained", sharex=True)
    for axes, (method, label, color) in zip(
        panels,
        (("utility", "future utility U", BLUE), ("write_slow", "slow-head β‖v‖", GREEN)),
        strict=True,
    ):
        trace = example[example["method"] == method].sort_values("item")
        axes.fill_between(trace["item"], 0, trace["value"], color=color, alpha=0.25, linewidth=0)
        axes.plot(trace["item"], trace["value"], color=color, linewidth=0.7)
        axes.set_ylim(0, 1.05)
        axes.set_yticks([0, 0.5, 1])
        axes.set_ylabel(label)
    panels[-1].set_xlabel("context position (token)")
    panels[-1].set_xlim(0, example["item"].max())
    panels[0].set_title(f"{model_title(rows['model'].iloc[0], lab)}, attention layer {options['layer']}")
    text = (
        f"The document of corpus {example['task'].iloc[0]} whose Spearman correlation between the two traces is the "
        f"median over all documents ({options['spearman']:+.2f}). Each trace is scaled to its maximum after the first "
        "token."
    )
    caption(figure, text, COLUMN)
    return figure


def figure_8(rows: pd.DataFrame, lab: bool = False) -> Figure:
    """Spearman correlation with utility and top-10 % overlap of the predictors, by attention layer.

    Reads method, options (the layer), task, item, metric and value of the experiment ``predictors``.
    """
    found = summary.predictor_rows_of(rows)
    found = found[found["method"].isin(PREDICTORS)]
    layers = sorted(found["layer"].unique())
    figure, panels = plt.subplots(1, 2, figsize=(PAGE, 2.5), layout="constrained")
    for axes, metric, label in zip(
        panels, ("spearman", "overlap@10"), ("Spearman ρ with U", "top-10 % overlap (%)"), strict=True
    ):
        table = summary.per_layer(found, metric)
        for shift, name in enumerate(n for n in PREDICTORS if n in set(table["method"])):
            line = table[table["method"] == name].sort_values("layer")
            style = look(name, PREDICTORS)
            place = line["layer"] + (shift - 3) * 0.03 * (layers[-1] - layers[0] or 1) / len(layers)
            axes.errorbar(
                place,
                line["value"],
                yerr=[(line["value"] - line["low"]).clip(lower=0), (line["high"] - line["value"]).clip(lower=0)],
                color=style.color,
                marker=style.marker,
                label=style.label,
                elinewidth=0.7,
                zorder=3 if name == "mlp" else 2,
            )
        axes.set_xticks(layers)
        axes.set_xlabel("attention layer")
        axes.set_ylabel(label)
    panels[0].axhline(0, color="0.6", linewidth=0.6)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(model_title(rows["model"].iloc[0], lab), fontsize=7.5)
    who = f"{rows['model'].iloc[0]} is a small model trained for this suite. " if lab else ""
    text = (
        f"{who}Mean over KV heads and {summary.documents(found)} documents; learned predictors are tested on a "
        "corpus they were not trained on. Bars: 95 % bootstrap intervals over documents."
    )
    caption(figure, text, PAGE)
    return figure
