"""Rooflines of the kernels: rate against arithmetic intensity, below the ceilings measured in the same run."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kvrepro.errors import InputError
from kvrepro.figures.style import BLUE, COLUMN, GREEN, GREY, ORANGE, PURPLE, RED, SKY, caption
from kvrepro.profiling.settings import Settings
from kvrepro.profiling.summary import ceiling, kernels

COLORS = [BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, "black"]
MARKERS = "os^Dv<xPh*>d"  # more of them than colours, so that a pair repeats late


def roofline(rows: pd.DataFrame, settings: Settings) -> Figure:
    """One point a kernel at its longest length, with the share of its bound.

    Reads seconds, bytes and flops of the experiment ``profile_kernels``. A kernel without arithmetic is drawn at the
    left edge by its rate of bytes.
    """
    table = kernels(rows)
    if table.empty:
        raise InputError("there are no rows on kernels; run the kernels of the profile.")
    table = table.sort_values("n_tokens").groupby("task").last().reset_index()
    flops, read = ceiling(rows, "matrix_product"), ceiling(rows, "streaming_read")
    edge = 0.1
    figure, axes = plt.subplots(figsize=(COLUMN, 2.9), layout="constrained")
    x = np.geomspace(edge / 2, 1e6, 200)
    axes.plot(x, np.minimum(flops, x * read), color="black", linewidth=0.9)
    for place, row in enumerate(table.itertuples()):
        color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
        intensity = max(row.flops / row.bytes, edge)
        rate = max(row.flops / row.seconds, edge * row.bytes / row.seconds)
        label = f"{row.task.replace('_', ' ')} ({row.share:.0%} of its bound)"
        axes.plot(intensity, rate, marker, color=color, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("operations per second")
    axes.set_ylim(top=3 * flops)
    axes.legend(loc="lower right", fontsize=5)
    text = (
        f"Ceilings measured in the same run: {flops / 1e12:.3g} TFLOP/s (bf16 product), {read / 1e12:.3g} TB/s (read)."
    )
    caption(figure, text, COLUMN)
    return figure
