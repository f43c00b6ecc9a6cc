"""How figures look: one colour and marker per method and predictor everywhere, sizes of a printed page, captions."""

from __future__ import annotations

import hashlib
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrepro.analysis import names
from kvrepro.results import DENSE

COLUMN = 3.3  #: width of one column in inches
PAGE = 6.8  #: width of the page in inches

plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 7,
        "axes.titlesize": 7.5,
        "axes.labelsize": 7,
        "xtick.labelsize": 6.5,
        "ytick.labelsize": 6.5,
        "legend.fontsize": 6.5,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "0.9",
        "grid.linewidth": 0.5,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "pdf.fonttype": 42,
        "savefig.dpi": 300,
    }
)


class Look(NamedTuple):
    """What a line is drawn with."""

    label: str
    color: str
    marker: str


# Okabe and Ito's palette, which is told apart with every common colour vision deficiency; markers differ as well.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#7F7F7F",
    "#000000",
)
BROWN = "#5A3E1B"  #: told apart from these as well as they from one another

_METHODS = {
    DENSE: (BLACK, ""),
    "gatesight": (BLUE, "o"),
    "snapkv": (ORANGE, "s"),
    "keydiff": (GREEN, "^"),
    "kvzip": (RED, "D"),
    "triattention": (PURPLE, "v"),
    "l2_norm": (BROWN, "P"),
    "random": (GREY, "x"),
    "wg_kv": (BLUE, "o"),
    "local_attention": (SKY, "<"),
    "duo_attention": (ORANGE, "s"),
    "quest": (RED, "D"),
    "wg_kv+quest": (BLUE, "o"),
    "wg_kv+snapkv": (BLUE, "o"),
    "full": (GREY, ""),
}
_PREDICTORS = {
    "mlp": (BLUE, "o"),
    "ridge": (ORANGE, "s"),
    "age_mlp": (SKY, "<"),
    "oracle": (RED, "D"),
    "write_slow": (GREEN, "^"),
    "age": (PURPLE, "v"),
    "write": ("#8C6D31", "P"),
    "random": (GREY, "x"),
}
METHODS = {name: Look(names.METHODS[name], *marks) for name, marks in _METHODS.items()}
PREDICTORS = {name: Look(names.PREDICTORS[name], *marks) for name, marks in _PREDICTORS.items()}

# For names that are not listed: further colours that keep their distance, chosen by the name alone.
SPARE_COLORS = ("#882255", "#117733", "#332288", "#AA4499", "#44AA99", "#999933", "#661100", "#6699CC")
SPARE_MARKERS = ("p", "*", "h", "X", "d", "8", ">", "P")


def look(name: str, known: dict[str, Look] = METHODS) -> Look:
    """The look of a method or predictor; a name that is not listed always gets the same one, from a hash of it."""
    if name in known:
        return known[name]
    digest = hashlib.sha256(name.encode()).digest()
    return Look(name, SPARE_COLORS[digest[0] % len(SPARE_COLORS)], SPARE_MARKERS[digest[1] % len(SPARE_MARKERS)])


def benchmark_title(rows: pd.DataFrame) -> str:
    """The benchmark of accuracy rows as titles give it: RULER's items are of one length, so theirs stands beside it, in
    round numbers, and generated contexts are never called by the name of the benchmark that they stand in for. Where
    some tasks have published contexts and others stand-ins, it names the former."""
    name = rows["experiment"].iloc[0]
    made = sorted(rows["benchmark"].unique()) if "benchmark" in rows else [name]
    title = names.BENCHMARKS.get(made[-1]) or names.BENCHMARKS.get(name, name)
    if len(made) > 1:
        published = rows["task"][rows["benchmark"] == name].unique()
        title += f" ({', '.join(published)}: published)"
    return f"{title} {math.ceil(rows['n_tokens'].max() / 512) * 512}" if name == "ruler" else title


def model_title(model: str, lab: bool) -> str:
    """A model's name as titles give it, saying that it is a lab model when it is one."""
    return f"{model} (lab model)" if lab else model


def about(model: str, lab: bool) -> str:
    """The sentence with which a caption begins when the model is a lab model."""
    return f"{model} is a small model trained for this suite. " if lab else ""


def panel_grid(panels: int, extra: float) -> tuple[Figure, np.ndarray]:
    """A grid as wide as a page, at most five panels a row that share their axes, with room for ``panels`` of them and,
    after the last, for a legend; ``extra`` inches of height beside the rows."""
    columns = min(5, panels + 1)
    height = math.ceil((panels + 1) / columns)
    size = (PAGE, 1.35 * height + extra)
    return plt.subplots(height, columns, figsize=size, layout="constrained", sharex=True, sharey=True, squeeze=False)


def task_panels(tasks: Sequence[str], draw: Callable[[Axes, Sequence[str]], None], across: str) -> Figure:
    """Accuracy in percent over ``across``: ``draw(axes, tasks)`` draws the mean over all tasks, then a panel a task.
    The last place is the legend's. One task is one panel."""
    shown = [(task, (task,)) for task in tasks]
    if len(tasks) > 1:
        shown.insert(0, ("mean over tasks", tuple(tasks)))
    figure, grid = panel_grid(len(shown), 0.35)
    panels = list(grid.flat)
    for axes, (title, some) in zip(panels, shown, strict=False):
        draw(axes, some)
        axes.set_title(title, fontsize=6.5)
        axes.set_ylim(-3, 103)
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy (%)")
    for axes in panels[len(shown) :]:
        axes.axis("off")
    entries: dict = {}  # of any panel: the first one may lack some
    for axes in panels[: len(shown)]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    panels[len(shown)].legend(entries.values(), entries.keys(), loc="center", handlelength=2.5)
    for column in grid.T:
        for axes in [axes for axes in column if axes.axison][-1:]:
            axes.set_xlabel(across)
            axes.tick_params(labelbottom=True)
    return figure


def caption(figure: Figure, text: str, width: float) -> None:
    """Small print under a figure: what was averaged, what the bars are, what was left out."""
    characters = int(width * 24)
    figure.text(
        0.01, -0.01, "\n".join(textwrap.wrap(text, characters)), ha="left", va="top", fontsize=5.5, color="0.35"
    )


def save(figure: Figure, pdf: str, png: str) -> None:
    """Write PDF and PNG without a date, so that the same rows give the same files."""
    figure.savefig(pdf, bbox_inches="tight", pad_inches=0.03, metadata={"CreationDate": None, "ModDate": None})
    figure.savefig(png, bbox_inches="tight", pad_inches=0.03, metadata={"Software": None})
    plt.close(figure)
