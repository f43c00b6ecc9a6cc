"""The same SCBench answers under several scorers (GateSight Appendix A): accuracies, their difference, the order of the
methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pandas as pd

from kvrepro.analysis.accuracy import Accuracy, accuracy
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.errors import InputError

#: Scorers and the metric that holds their scores in accuracy rows; the revised one is what everything else shows.
SCORERS = {"official": "official", "revised": "score", "corrected": "corrected"}


def by_scorer(rows: pd.DataFrame, tasks: str | Sequence[str] | None = None) -> dict[str, Accuracy]:
    """Accuracy by each scorer, over the same items. Raises InputError when the rows lack a scorer."""
    tasks = (tasks,) if isinstance(tasks, str) else tasks
    found = {"revised": accuracy(rows, tasks)}
    if missing := [name for name, metric in SCORERS.items() if metric not in set(rows["metric"])]:
        raise InputError(f"the rows hold no score of the {missing[0]} scorer; give SCBench's, which hold all.")
    return {name: accuracy(rows, tasks, metric=metric) for name, metric in SCORERS.items() if name != "revised"} | found


def official_minus_revised(scored: Mapping[str, Accuracy]) -> Estimate:
    """The difference of the two scorers in points, an entry a series; both resample the same items together."""
    official, revised = scored["official"].estimate, scored["revised"].estimate
    return Estimate(official.value - revised.value, official.draws - revised.draws, revised.units)


def order_changes(scored: Mapping[str, Accuracy], methods: Sequence[str]) -> dict[float, bool]:
    """Whether the scorers put two of the methods in opposite orders, by kept fraction below 1 at which there are two.
    Methods that are level under one of them change no order."""
    tables = {name: scored[name].table() for name in ("official", "revised")}
    both = tables["official"].merge(tables["revised"], on=["method", "budget"])
    both = both[both["method"].isin(methods) & (both["budget"] < 1)]
    changes = {}
    for budget, part in both.groupby("budget"):
        pairs = list(combinations(zip(part["accuracy_x"], part["accuracy_y"], strict=True), 2))
        if pairs:
            changes[budget] = any((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs)
    return changes
