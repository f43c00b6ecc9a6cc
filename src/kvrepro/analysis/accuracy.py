"""Accuracy of methods over kept fractions, with intervals, from the rows of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.errors import InputError
from kvrepro.results import REFERENCES, valid

SERIES = ["method", "budget"]
Series = tuple[str, float]  # method, kept fraction


@dataclass(frozen=True)
class Accuracy:
    """Percent per (method, kept fraction), mean over items and then over tasks.

    All series of a task are averaged over the same items: those whose rows passed their checks in every series. A
    series that has no such row in a task has no accuracy (NaN) and stands in ``gaps``.
    """

    series: pd.MultiIndex
    estimate: Estimate
    tasks: tuple[str, ...]
    items: int  #: the fewest items of a task
    failed: int  #: rows that failed a check
    excluded: int  #: rows that are not averaged: those, and the other rows of their items
    rows: int
    gaps: tuple[str, ...]  #: series without a valid row in a task, in words

    def table(self) -> pd.DataFrame:
        """Columns method, budget, accuracy, low, high."""
        frame = self.series.to_frame(index=False)
        return frame.assign(accuracy=self.estimate.value, low=self.estimate.low, high=self.estimate.high)

    def left_out(self) -> str:
        """What is missing from the numbers, as notes and captions say it."""
        text = f"{self.failed} of {self.rows} rows failed a check"
        text += f"; all {self.excluded} rows of their items are left out." if self.failed else "."
        return f"{text} Without a valid row: {', '.join(self.gaps)}." if self.gaps else text

    def __getitem__(self, key: Series) -> Estimate:
        """The estimate of one method at one kept fraction; KeyError when there is none."""
        place = self.series.get_loc(key)
        return Estimate(self.estimate.value[place], self.estimate.draws[:, place], self.estimate.units)


def accuracy(
    rows: pd.DataFrame, tasks: Sequence[str] | None = None, series: Sequence[Series] | None = None
) -> Accuracy:
    """Accuracy of ``series`` over ``tasks`` (all that the rows hold when None) of one model. Methods that take no kept
    fraction, such as a selection or a trained gate, are left out.

    Raises InputError when there are no rows, the rows are of several models, or a task has no rows or none that passed
    its checks.
    """
    scores = rows[(rows["metric"] == "score") & rows["budget"].notna()] if len(rows) else rows
    if scores.empty:
        raise InputError("there are no accuracy rows; run the target accuracy.")
    if scores["model"].nunique() > 1:
        raise InputError(f"accuracy rows of several models ({', '.join(scores['model'].unique())}); give one model's.")
    if series is not None:
        scores = scores[pd.MultiIndex.from_frame(scores[SERIES]).isin(list(series))]
        if scores.empty:
            raise InputError(f"there are no accuracy rows of {', '.join(f'{m} at {k:g}' for m, k in series)}.")
    tasks = tuple(scores["task"].unique()) if tasks is None else tuple(tasks)
    if missing := sorted(set(tasks) - set(scores["task"])):
        raise InputError(f"there are no accuracy rows of task {missing[0]}; run the target accuracy.")
    scores = scores[scores["task"].isin(tasks)]
    columns = pd.MultiIndex.from_frame(scores[SERIES].drop_duplicates().sort_values(SERIES))
    blocks, gaps, used = [], [], 0
    for task in tasks:
        part = scores[scores["task"] == task]
        block, lacking = _block(part, columns, task)
        blocks.append(block.to_numpy())
        gaps += [f"{method} at {kept:g} in {task}" for method, kept in lacking]
        there = pd.MultiIndex.from_frame(part[SERIES]).isin(columns.difference(lacking))
        used += int((part["item"].isin(block.index) & there).sum())
    estimate = bootstrap.mean(blocks).map(lambda x: 100 * x)
    fewest = min(len(block) for block in blocks)
    failed = len(scores) - len(valid(scores))
    return Accuracy(columns, estimate, tasks, fewest, failed, len(scores) - used, len(scores), tuple(gaps))


def _block(rows: pd.DataFrame, columns: pd.MultiIndex, task: str) -> tuple[pd.DataFrame, pd.MultiIndex]:
    """Scores of one task, items down and series across, of the items that are valid in every series that has a valid
    item at all; and the series that have none, which are NaN."""
    keys = ["item", *SERIES]
    answers = rows.assign(whole=rows["ok"].fillna(True).astype(bool) if "ok" in rows else True)
    whole = answers.groupby(keys)["whole"].transform("all")  # an item of several questions needs them all
    scores = bootstrap.units(answers[whole], "item", SERIES).reindex(columns=columns)
    lacking = columns[scores.isna().all().to_numpy()]
    block = scores.dropna(subset=list(columns.difference(lacking)))
    if len(lacking) == len(columns):
        raise InputError(f"all accuracy rows of task {task} failed a check; see their column failed_checks.")
    if block.empty:
        raise InputError(f"no item of task {task} passed its checks in every method; see the column failed_checks.")
    return block, lacking


def methods(rows: pd.DataFrame) -> list[str]:
    """Methods in the rows, without the references, in the order in which the config names them."""
    return [m for m in rows.loc[rows["budget"].notna(), "method"].unique() if m not in REFERENCES]
