"""SCBench under the official scorer against the revised one (GateSight Appendix A's sensitivity analysis)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.benchmarks.scbench import task_means
from kvrepro.benchmarks.scbench.score import CORRECTED, OFFICIAL, REVISED, SCORERS
from kvrepro.errors import InputError
from kvrepro.figures.style import look, model_title
from kvrepro.results import DENSE, REFERENCES, valid
from kvrepro.tables.markdown import Table, interval, number

ARM = ["method", "budget"]


def sensitivity(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Accuracy per method and kept fraction by each scorer, and official minus revised with its 95 % interval.

    ``rows`` are those of ``scbench.rescore``. The frame has the columns method, budget, official, revised, corrected,
    difference, low, high, items; percent, mean over tasks whose sub-tasks weigh the same. The Markdown says how many
    kept fractions have the methods in the same order under both. Raises InputError for rows of another kind, of several
    models, or without a row that passed its checks.
    """
    good = _checked(rows)
    means = task_means(good, [*ARM, "metric"]).groupby([*ARM, "metric"])["value"].mean().unstack("metric") * 100
    parts = [_difference(good, arm) for arm in means.index]
    frame = means.reset_index().rename_axis(columns=None)[[*ARM, *SCORERS]]
    frame = frame.assign(
        difference=frame[OFFICIAL] - frame[REVISED], low=[low for low, _ in parts], high=[high for _, high in parts]
    )
    names = [DENSE, *(m for m in rows["method"].unique() if m not in REFERENCES)]
    frame = frame[frame["method"].isin(names)].assign(items=good.groupby("task")["item"].nunique().min())
    frame = frame.sort_values("budget").sort_values("method", key=lambda c: c.map(names.index), kind="stable")
    title = f"SCBench by the official and the revised scorer, {model_title(rows['model'].iloc[0], lab)}"
    header = ["method", "kept fraction", *SCORERS, "official - revised"]
    cells = [
        [
            look(r.method).label,
            f"{r.budget:g}",
            *(number(getattr(r, name)) for name in SCORERS),
            interval(r.difference, r.low, r.high, sign=True),
        ]
        for r in frame.itertuples()
    ]
    return frame, str(Table(title, header, cells, _note(frame, good, rows)))


def scorer_tasks(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """The same by task, over all methods and kept fractions: columns task, official, revised, corrected, difference,
    answers. The tasks without a difference are those whose scorer is not revised."""
    good = _checked(rows)
    means = task_means(good, ["metric"]).pivot(index="task", columns="metric", values="value") * 100
    answers = good[good["metric"] == REVISED].groupby("task").size().rename("answers")
    frame = means[list(SCORERS)].assign(difference=means[OFFICIAL] - means[REVISED]).join(answers)
    frame = frame.reset_index().rename_axis(columns=None)
    cells = [
        [r.task, *(number(getattr(r, name)) for name in SCORERS), number(r.difference, sign=True), f"{r.answers:,}"]
        for r in frame.itertuples()
    ]
    title = f"SCBench scorers by task, {model_title(rows['model'].iloc[0], lab)}"
    note = "Percent over the answers of all methods and kept fractions; the sub-tasks of a mixed task weigh the same."
    return frame, str(Table(title, ["task", *SCORERS, "official - revised", "answers"], cells, note))


def _checked(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that passed their checks, which must be rescored answers of one model."""
    if rows.empty or not {OFFICIAL, REVISED, CORRECTED} <= set(rows["metric"]) or "subtask" not in rows:
        raise InputError("the scorer table needs SCBench answers scored by every scorer: pass them through rescore.")
    if rows["model"].nunique() > 1:
        raise InputError(f"SCBench rows of several models ({', '.join(rows['model'].unique())}); give one model's.")
    good = valid(rows)
    if good.empty:
        raise InputError("no SCBench row passed its checks; see the column failed_checks.")
    return good


def _difference(rows: pd.DataFrame, arm: Sequence) -> tuple[float, float]:
    """95 % interval of official minus revised of one arm, contexts drawn anew."""
    own = rows[(rows["method"] == arm[0]) & (rows["budget"] == arm[1]) & rows["metric"].isin([OFFICIAL, REVISED])]
    items = task_means(own, ["metric", "item"]).pivot(index=["task", "item"], columns="metric", values="value")
    gaps = (items[OFFICIAL] - items[REVISED]) * 100
    estimate = bootstrap.mean([gap.to_numpy()[:, None] for _, gap in gaps.groupby("task")])
    return float(np.ravel(estimate.low)[0]), float(np.ravel(estimate.high)[0])


def _note(frame: pd.DataFrame, good: pd.DataFrame, rows: pd.DataFrame) -> str:
    pruned = frame[(frame["method"] != DENSE) & (frame["budget"] < 1)]
    groups = [part for _, part in pruned.groupby("budget") if len(part) > 1]
    same = sum(
        list(part.sort_values(OFFICIAL)["method"]) == list(part.sort_values(REVISED)["method"]) for part in groups
    )
    order = f"The methods are in the same order at {same} of {len(groups)} kept fractions. " if groups else ""
    left = len(rows) - len(good)
    out = f" {left} of {len(rows)} rows failed a check and are left out." if left else ""
    return (
        f"Percent, mean over {good['task'].nunique()} tasks, with 95 % bootstrap intervals over contexts. {order}"
        f"Revised: GateSight Appendix A; corrected: many_shot's labels read whole as well.{out}"
    )
