"""Accuracy of methods over kept fractions, with intervals, from the rows of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.errors import InputError
from kvrepro.results import valid

REFERENCES = ("dense", "full")  #: rows of the unpruned model: its own cache, and a child that keeps everything
SERIES = ["method", "budget"]


@dataclass(frozen=True)
class Accuracy:
    """Percent per (method, kept fraction), mean over items and then over tasks."""

    series: pd.MultiIndex
    estimate: Estimate
    tasks: tuple[str, ...]
    items: int  #: the fewest items of a task
    excluded: int  #: rows that failed a check and are not averaged
    rows: int

    def table(self) -> pd.DataFrame:
        """Columns method, budget, accuracy, low, high."""
        frame = self.series.to_frame(index=False)
        return frame.assign(accuracy=self.estimate.value, low=self.estimate.low, high=self.estimate.high)

    def __getitem__(self, key: tuple[str, float]) -> Estimate:
        """The estimate of one method at one kept fraction; KeyError when there is none."""
        place = self.series.get_loc(key)
        return Estimate(self.estimate.value[place], self.estimate.draws[:, place], self.estimate.units)


def accuracy(rows: pd.DataFrame, tasks: Sequence[str] | None = None) -> Accuracy:
    """Accuracy over ``tasks`` (all that the rows hold when None) of one model.

    Only rows whose checks passed are averaged. Raises InputError when there are no rows, a task has none, or the rows
    are of several models.
    """
    scores = rows[rows["metric"] == "score"] if len(rows) else rows
    if scores.empty:
        raise InputError("there are no accuracy rows; run the target accuracy.")
    if scores["model"].nunique() > 1:
        raise InputError(f"accuracy rows of several models ({', '.join(scores['model'].unique())}); give one model's.")
    tasks = tuple(scores["task"].unique()) if tasks is None else tuple(tasks)
    if missing := sorted(set(tasks) - set(scores["task"])):
        raise InputError(f"there are no accuracy rows of task {missing[0]}; run the target accuracy.")
    scores = scores[scores["task"].isin(tasks)]
    kept = valid(scores)
    if kept.empty:
        raise InputError("all accuracy rows failed a check; see their column failed_checks.")
    frames = {task: bootstrap.units(part, "item", SERIES) for task, part in kept.groupby("task", sort=False)}
    series = pd.MultiIndex.from_frame(kept[SERIES].drop_duplicates().sort_values(SERIES))
    blocks = [frames[task].reindex(columns=series).to_numpy() for task in tasks if task in frames]
    estimate = bootstrap.mean(blocks).map(lambda x: 100 * x)
    fewest = min(len(block) for block in blocks)
    return Accuracy(series, estimate, tasks, fewest, len(scores) - len(kept), len(scores))


def methods(rows: pd.DataFrame) -> list[str]:
    """Methods in the rows, without the references, in the order in which the config names them."""
    return [m for m in rows["method"].unique() if m not in REFERENCES]
