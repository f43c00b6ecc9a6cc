"""Accuracy on a benchmark of every method at every kept fraction: the mean over tasks, and task by task."""

from __future__ import annotations

import pandas as pd

from kvrepro.analysis.accuracy import Accuracy, accuracy, cut_note, judged_note, methods, unanswered_note
from kvrepro.analysis.bootstrap import FEW
from kvrepro.figures.style import benchmark_title, look, model_title
from kvrepro.results import DENSE
from kvrepro.tables.markdown import Table, interval


def mean_accuracy(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Mean over the tasks: a frame of method, budget, accuracy, low, high, tasks, items, excluded, and Markdown."""
    result = accuracy(rows)
    frame = _ordered(result, rows).assign(tasks=len(result.tasks), items=result.items, excluded=result.excluded)
    title = f"{benchmark_title(rows)} accuracy, {model_title(rows['model'].iloc[0], lab)}"
    return frame, str(_pivot(title, frame, note(result, rows)))


def task_accuracy(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Task by task: the frame of :func:`mean_accuracy` with a column task, and one Markdown table a task."""
    tasks = accuracy(rows).tasks
    model = model_title(rows["model"].iloc[0], lab)
    frames, texts = [], [f"# {benchmark_title(rows)} accuracy by task, {model}\n"]
    for task in tasks:
        result = accuracy(rows, [task])
        frame = _ordered(result, rows).assign(task=task, items=result.items, excluded=result.excluded)
        frames.append(frame)
        texts.append(str(_pivot(task, frame, note(result, rows[rows["task"] == task]))))
    return pd.concat(frames, ignore_index=True), "\n".join(texts)


def note(result: Accuracy, rows: pd.DataFrame) -> str:
    """What an accuracy table says of its numbers; ``rows`` are the benchmark's, with the unpruned model's."""
    tasks = f"mean over {len(result.tasks)} tasks" if len(result.tasks) > 1 else "one task"
    pooled = ", resampled together over all tasks" if len(result.tasks) > 1 and result.units < FEW else ""
    return (
        f"Percent, {tasks} of {result.items} items, with 95 % bootstrap intervals over {result.resampled}{pooled}. A "
        f"kept fraction is the share of the KV cache that is kept. {_apart(rows)}{judged_note(rows)}{cut_note(rows)}"
        f"{unanswered_note(rows)}{result.left_out()}"
    )


def _apart(rows: pd.DataFrame) -> str:
    """The sentence on methods that take no kept fraction, which have no place in the table."""
    apart = rows.loc[rows["budget"].isna(), "method"].str.split("@").str[0].unique()
    labels = ", ".join(look(method).label for method in apart)
    return f"{labels} take{'s' * (len(apart) == 1)} no kept fraction: see the figures. " if labels else ""


def _ordered(result: Accuracy, rows: pd.DataFrame) -> pd.DataFrame:
    """Unpruned model first, then the methods as the config names them, by kept fraction."""
    names = [DENSE, *methods(rows)]
    table = result.table()
    table = table[table["method"].isin(names)]
    return table.sort_values("budget").sort_values("method", key=lambda c: c.map(names.index), kind="stable")


def _pivot(title: str, frame: pd.DataFrame, text: str) -> Table:
    """Methods down, kept fractions across; the best method of a kept fraction in bold."""
    pruned = frame[frame["method"] != DENSE]
    best = pruned[pruned["budget"] < 1].groupby("budget")["accuracy"].max()
    budgets = sorted(pruned["budget"].unique())
    cells = {
        (r.method, r.budget): interval(r.accuracy, r.low, r.high, best=r.accuracy == best.get(r.budget))
        for r in pruned.itertuples()
    }
    rows = [[look(m).label, *(cells.get((m, b), "–") for b in budgets)] for m in pruned["method"].unique()]
    for r in frame[frame["method"] == DENSE].itertuples():
        rows.insert(0, [look(DENSE).label, *["–"] * (len(budgets) - 1), interval(r.accuracy, r.low, r.high)])
    return Table(title, ["method, kept fraction", *map(str, budgets)], rows, text)
