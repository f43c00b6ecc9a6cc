"""SCBench under the official scorer against the revised one (GateSight Appendix A's sensitivity analysis)."""

from __future__ import annotations

import pandas as pd

from kvrepro.analysis.accuracy import accuracy, methods
from kvrepro.analysis.scorers import SCORERS, by_scorer, official_minus_revised, order_changes
from kvrepro.figures.style import benchmark_title, look, model_title
from kvrepro.results import DENSE
from kvrepro.tables.accuracy import note
from kvrepro.tables.markdown import Table, interval, number


def sensitivity(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Accuracy per method and kept fraction by each scorer, and official minus revised with its 95 % interval.

    The frame has the columns method, budget, official, revised, corrected, difference, low, high, tasks and items, in
    percent, means over tasks. The Markdown says at how many kept fractions the methods stand in the same order under
    both. Raises InputError for rows that lack a scorer.
    """
    scored = by_scorer(rows)
    shown, shift = scored["revised"], official_minus_revised(scored)
    frame = shown.series.to_frame(index=False).assign(**{name: scored[name].estimate.value for name in SCORERS})
    frame = frame.assign(difference=shift.value, low=shift.low, high=shift.high)
    names = [DENSE, *methods(rows)]
    frame = frame[frame["method"].isin(names)].assign(tasks=len(shown.tasks), items=shown.items)
    frame = frame.sort_values("budget").sort_values("method", key=lambda c: c.map(names.index), kind="stable")
    cells = [
        [
            look(r.method).label,
            f"{r.budget:g}",
            *(number(getattr(r, name)) for name in SCORERS),
            interval(r.difference, r.low, r.high, sign=True),
        ]
        for r in frame.itertuples()
    ]
    changed = order_changes(scored, methods(rows))
    same = sum(not differs for differs in changed.values())
    order = f"The methods are in the same order at {same} of {len(changed)} kept fractions. " if changed else ""
    text = f"{order}{_SCORERS}{note(shown, rows)}"
    return frame, str(
        Table(_title("by the official and the revised scorer", rows, lab), _header("method"), cells, text)
    )


def scorer_tasks(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """The same by task, over all methods and kept fractions: columns task, official, revised, corrected, difference,
    low, high and items. The tasks without a difference are those whose scorer is not revised."""
    lines = []
    for task in accuracy(rows).tasks:
        scored = by_scorer(rows, task)
        shift = official_minus_revised(scored).map(lambda x: x.mean(-1))
        means = {name: scored[name].estimate.value.mean() for name in SCORERS}
        ends = {"difference": float(shift.value), "low": float(shift.low), "high": float(shift.high)}
        lines.append({"task": task} | means | ends | {"items": scored["revised"].items})
    frame = pd.DataFrame(lines)
    cells = [
        [r.task, *(number(getattr(r, name)) for name in SCORERS), interval(r.difference, r.low, r.high, sign=True)]
        for r in frame.itertuples()
    ]
    text = f"Percent over all methods and kept fractions, with 95 % bootstrap intervals over items. {_SCORERS.rstrip()}"
    return frame, str(Table(_title("scorers by task", rows, lab), ["task", *_header("")[2:]], cells, text))


_SCORERS = "Revised: GateSight Appendix A; corrected: many_shot's labels read whole as well. "


def _header(first: str) -> list[str]:
    return [first, "kept fraction", *SCORERS, "official - revised"]


def _title(what: str, rows: pd.DataFrame, lab: bool) -> str:
    return f"{benchmark_title(rows)} {what}, {model_title(rows['model'].iloc[0], lab)}"
