"""The paper's own curves over ours, where a user has them (:mod:`kvrepro.analysis.published`): thin, dotted, in the
colours of what they stand beside, with one entry of the legend for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from kvrepro.analysis.published import MODELS
from kvrepro.benchmarks import helmet
from kvrepro.figures.style import GREY, look

DOTTED: dict[str, Any] = {"linestyle": ":", "linewidth": 0.9}


def of_tasks(published: pd.DataFrame | None, tasks: Iterable[str]) -> pd.DataFrame | None:
    """What was published of some tasks; None where nothing was, or where the user has not got it."""
    found = None if published is None else published[published["task"].isin(list(tasks))]
    return None if found is None or found.empty else found


def task_lines(axes: Axes, published: pd.DataFrame | None, tasks: Sequence[str], methods: Iterable[str]) -> None:
    """The lines of those methods that a panel of one task shows. The paper has no mean over tasks."""
    own = of_tasks(published, tasks) if len(tasks) == 1 else None
    if own is None:
        return
    for name in methods:
        line = own[own["method"] == name].sort_values("size")
        axes.plot(line["size"], line["score"], color=look(name).color, **DOTTED)
    entry(axes, own)


def entry(axes: Axes, published: pd.DataFrame) -> None:
    """The entry of the legend."""
    axes.plot([], [], color=GREY, label=f"published, {_model(published)}", **DOTTED)


def helmet_note(published: pd.DataFrame | None, rows: pd.DataFrame) -> str:
    """The sentence, with a space after it, about curves on HELMET beside accuracy rows; empty without any."""
    if published is None:
        return ""
    differs = {
        "another model": rows["model"].iloc[0] != published["model"].iloc[0],
        "other contexts": "benchmark" in rows and (rows["benchmark"] != helmet.BENCHMARK).any(),
    }
    other = " and ".join(name for name, holds in differs.items() if holds)
    said = f"{_model(published)} on HELMET at 32K tokens{other and f' ({other})'}"
    return f"Dotted: published, {said}; nothing of the mean, nor of tasks that a judge graded. "


def published_note(published: pd.DataFrame | None, marks: str = "Dotted") -> str:
    """The same about any other published numbers, by what they are drawn with."""
    return "" if published is None else f"{marks}: published, {_model(published)}. "


def _model(published: pd.DataFrame) -> str:
    return MODELS[published["model"].iloc[0]]
