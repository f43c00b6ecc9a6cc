"""Accuracy against the entries that a selection reads, alone or over an admitted cache: the axes of WG-KV Figure 9."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from kvrepro.analysis.accuracy import Accuracy, accuracy
from kvrepro.analysis.cache_sizes import with_sizes
from kvrepro.errors import InputError
from kvrepro.results import DENSE, valid


@dataclass(frozen=True)
class Selected:
    """Accuracy of methods with a selection by the entries that a token reads per KV head at most: series (method,
    entries) of ``result``, and (dense, 1) for the full cache. ``held`` is the share of the full cache that a method
    stores, mean over items and then tasks, by its name in the order of the config."""

    result: Accuracy
    held: dict[str, float]

    def budgets(self, *methods: str) -> list[float]:
        """Entries that all of these methods have read, rising."""
        own = [{budget for name, budget in self.result.series if name == method} for method in methods]
        return sorted(set.intersection(*own))


def selected(rows: pd.DataFrame, tasks: Sequence[str] | None = None) -> Selected:
    """Methods that select, over ``tasks`` (all that the rows hold when None) of one model on one benchmark. InputError
    when the rows hold none."""
    scores = rows[rows["metric"] == "score"] if len(rows) else rows
    budgets = {text: _budget(text) for text in scores["options"].unique()} if len(scores) else {}
    entries = scores["options"].map(budgets) if len(scores) else scores
    if not len(scores) or entries.isna().all():
        raise InputError("there are no accuracy rows of a selection method; run the target accuracy.")
    sized = with_sizes(scores)
    own = sized[entries.notna()]
    own = own.assign(budget=entries[entries.notna()], method=[_without_budget(name) for name in own["method"]])
    result = accuracy(pd.concat([sized[sized["method"] == DENSE], own], ignore_index=True), tasks)
    whole = valid(own)
    whole = whole[whole["task"].isin(result.tasks)]
    held = whole.groupby(["method", "task"])["size"].mean().groupby("method").mean()
    return Selected(result, {name: float(held[name]) for name in own["method"].unique()})


def _budget(options: str) -> float | None:
    """Entries that a token reads under these options; None without a selection."""
    return json.loads(options).get("selection", {}).get("budget")


def _without_budget(method: str) -> str:
    return re.sub("@budget=[^@]*", "", method)
