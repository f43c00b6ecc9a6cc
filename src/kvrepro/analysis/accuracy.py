"""Accuracy of methods over kept fractions, with intervals, from the rows of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import Block, Estimate
from kvrepro.benchmarks import helmet
from kvrepro.errors import InputError
from kvrepro.results import DENSE, REFERENCES, valid

SERIES = ["method", "budget"]
Series = tuple[str, float]  # method, kept fraction
UNANSWERED = 10  #: percent; below it the unpruned model has little that a method could lose


@dataclass(frozen=True)
class Accuracy:
    """Percent per (method, kept fraction), mean over the questions of all items and then over tasks. The sub-tasks of a
    mixed task weigh the same (GateSight Appendix A). Items are resampled with all their questions, and together where
    they repeat a question or a context.

    All series of a task are averaged over the same items: those whose rows passed their checks in every series. A
    series that has no such row in a task has no accuracy (NaN) and stands in ``gaps``.
    """

    series: pd.MultiIndex
    estimate: Estimate
    tasks: tuple[str, ...]
    items: int  #: the fewest items of a task
    units: int  #: the fewest that are resampled, in a task
    repeats: bool  #: whether several items are one of these
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

    @property
    def resampled(self) -> str:
        """What intervals are over, as notes and captions say it."""
        return f"items{', those of one question or context as one' if self.repeats else ''}"

    def __getitem__(self, key: Series) -> Estimate:
        """The estimate of one method at one kept fraction; KeyError when there is none."""
        place = self.series.get_loc(key)
        return Estimate(self.estimate.value[place], self.estimate.draws[:, place], self.estimate.units)


def accuracy(
    rows: pd.DataFrame,
    tasks: Sequence[str] | None = None,
    series: Sequence[Series] | None = None,
    metric: str = "score",
) -> Accuracy:
    """Accuracy of ``series`` over ``tasks`` (all that the rows hold when None) of one model on one benchmark. Methods
    that take no kept fraction, such as a selection or a trained gate, are left out. ``metric`` may name another scorer.

    Raises InputError when there are no rows, the rows are of several models or benchmarks (which may have tasks of the
    same name), or a task has no rows or none that passed its checks.
    """
    scores = rows[(rows["metric"] == metric) & rows["budget"].notna()] if len(rows) else rows
    if scores.empty:
        raise InputError("there are no accuracy rows; run the target accuracy.")
    for column, several in (("model", "models"), ("experiment", "benchmarks")):
        if column in scores and scores[column].nunique() > 1:
            named = ", ".join(scores[column].unique())
            raise InputError(f"accuracy rows of several {several} ({named}); give those of one.")
    if series is not None:
        scores = scores[pd.MultiIndex.from_frame(scores[SERIES]).isin(list(series))]
        if scores.empty:
            raise InputError(f"there are no accuracy rows of {', '.join(f'{m} at {k:g}' for m, k in series)}.")
    tasks = tuple(scores["task"].unique()) if tasks is None else tuple(tasks)
    if missing := sorted(set(tasks) - set(scores["task"].unique())):
        raise InputError(f"there are no accuracy rows of task {missing[0]}; run the target accuracy.")
    scores = scores[scores["task"].isin(tasks)]
    columns = pd.MultiIndex.from_frame(scores[SERIES].drop_duplicates().sort_values(SERIES))
    blocks, numbers, gaps, used = [], [], [], 0
    for task in tasks:
        part = scores[scores["task"] == task]
        block, items, lacking = _block(part, columns, task)
        blocks.append(block)
        numbers.append(len(items))
        gaps += [f"{method} at {kept:g} in {task}" for method, kept in lacking]
        there = pd.MultiIndex.from_frame(part[SERIES]).isin(columns.difference(lacking))
        used += int((part["item"].isin(items) & there).sum())
    estimate = bootstrap.mean(blocks).map(lambda x: 100 * x)
    units = [len(block) for block in blocks]
    failed = len(scores) - len(valid(scores))
    counts = failed, len(scores) - used, len(scores)
    return Accuracy(columns, estimate, tasks, min(numbers), min(units), units != numbers, *counts, tuple(gaps))


def _block(rows: pd.DataFrame, columns: pd.MultiIndex, task: str) -> tuple[Block, pd.Index, pd.MultiIndex]:
    """Scores of one task by unit, of the items that are valid in every series that has a valid item at all; those
    items; and the series that have none, which are NaN."""
    keys = ["item", *SERIES]
    answers = bootstrap.with_units(rows).assign(
        whole=rows["ok"].fillna(True).astype(bool) if "ok" in rows else True,
        subtask=rows["subtask"].fillna("") if "subtask" in rows else "",
    )
    whole = answers.groupby(keys)["whole"].transform("all")  # an item of several questions needs them all
    scores = bootstrap.units(answers[whole], "item", SERIES).reindex(columns=columns)
    lacking = columns[scores.isna().all().to_numpy()]
    items = scores.dropna(subset=list(columns.difference(lacking))).index
    if len(lacking) == len(columns):
        raise InputError(f"all accuracy rows of task {task} failed a check; see their column failed_checks.")
    if items.empty:
        raise InputError(f"no item of task {task} passed its checks in every method; see the column failed_checks.")
    used = answers[whole & answers["item"].isin(items)]
    units = pd.Index(sorted(used["unit"].unique()))
    found = [_part(part, units, columns) for _, part in used.groupby("subtask")]
    return Block(*map(np.stack, zip(*found, strict=True))), items, lacking


def _part(rows: pd.DataFrame, units: pd.Index, columns: pd.MultiIndex) -> tuple[np.ndarray, np.ndarray]:
    """Scores of one sub-task ``[units, series]``, means over a unit's questions, and their number ``[units]``."""
    scores = bootstrap.units(rows, "unit", SERIES).reindex(index=units, columns=columns)
    questions = rows.groupby(["unit", *SERIES]).size().groupby("unit").max().reindex(units, fill_value=0)
    return scores.to_numpy(), questions.to_numpy(dtype=float)


def unanswered(rows: pd.DataFrame) -> tuple[str, ...]:
    """Tasks of one model and benchmark on which the unpruned model scores below UNANSWERED percent, or what HELMET's
    metric gives to any text, in their order: what a method keeps there hardly shows."""
    dense = valid(rows[(rows["metric"] == "score") & (rows["method"] == DENSE)]) if len(rows) else rows
    if dense.empty:
        return ()
    least = helmet.least if dense["experiment"].iloc[0] == helmet.BENCHMARK else lambda task: UNANSWERED
    return tuple(t for t in dense["task"].unique() if accuracy(dense, [t]).estimate.value.max() < least(t))


def unanswered_note(rows: pd.DataFrame) -> str:
    """The sentence about :func:`unanswered` tasks that notes and captions hold, with a space after it; else nothing."""
    tasks = unanswered(rows)
    if not tasks:
        return ""
    other = " (ROUGE: 15 %)" if rows["experiment"].iloc[0] == helmet.BENCHMARK else ""
    text = f"Unpruned, the model scores below {UNANSWERED} %{other} on {', '.join(tasks)}"
    return f"{text}: no method has much to lose there. "


def judged_note(rows: pd.DataFrame) -> str:
    """The sentence, with a space after it, about tasks whose published score is that of a judge model."""
    tasks = helmet.judged(rows["task"].unique()) if rows["experiment"].iloc[0] == helmet.BENCHMARK else ()
    return f"No judge was run: {', '.join(tasks)} by ROUGE-L F1. " if tasks else ""


def cut_note(rows: pd.DataFrame) -> str:
    """The sentence, with a space after it, about answers to SCBench's stand-ins, which are shorter than published."""
    cut = "benchmark" in rows and (rows["benchmark"] == "scbench_stand_in").any()
    return (
        "Answers to SCBench's stand-ins end after most_new_tokens of the tier, 128 or fewer; the published tasks allow "
        "up to 1,024. "
        if cut
        else ""
    )


def methods(rows: pd.DataFrame) -> list[str]:
    """Methods in the rows, without the references, in the order in which the config names them."""
    return [m for m in rows.loc[rows["budget"].notna(), "method"].unique() if m not in REFERENCES]
