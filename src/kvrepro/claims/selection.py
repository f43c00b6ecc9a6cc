"""Queries on selection over an admitted cache (WG-KV §2.2, §5.4, Figures 2a and 9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap, selected
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.selected import Selected
from kvrepro.claims.admission import admitted_share, by_setting
from kvrepro.claims.comparisons import OF_LEADS, minus, over
from kvrepro.claims.evidence import TASKS, Evidence, NoRows
from kvrepro.errors import InputError
from kvrepro.results import DENSE, valid


def left_out(evidence: Evidence, method: str, benchmark: str) -> Estimate:
    """Percent of a context's entries that are not held, mean over contexts and then tasks, of the setting that holds
    most."""
    return admitted_share(evidence, method, benchmark).map(lambda x: 100 * (1 - x))


def selection_gap(evidence: Evidence, a: str, b: str, benchmark: str) -> Estimate:
    """The score of a minus that of b in points at the number of selected entries where they differ most, mean over all
    tasks of the benchmark; NoRows when one lacks."""
    if missing := set(TASKS[benchmark]) - set(evidence.of(benchmark)["task"]):
        raise NoRows(f"tasks {', '.join(sorted(missing))}")
    try:
        found: Selected = evidence.read(_reader(benchmark))
    except InputError as error:
        raise NoRows(str(error)) from error
    budgets = found.budgets(a, b)
    if not budgets:
        raise NoRows(f"numbers of entries that both {a} and {b} selected")
    return over([minus(found.result[a, n], found.result[b, n]) for n in budgets], OF_LEADS["farthest"])


def selection_cost(evidence: Evidence, a: str, b: str, benchmark: str, quantity: str) -> Estimate:
    """Entries in the pages that a selection scores, or bytes held, of a over the same of b, means over contexts and
    then tasks, each of the setting with the most; how much is read of them changes neither.

    The local tokens, which every head holds, are in no page.
    """
    rows = valid(evidence.of(benchmark))
    values = rows["bytes_held"] if quantity == "bytes" else _candidates(rows)
    ours, theirs = (by_setting(rows, method, values) for method in (a, b))
    settings = ours.shape[1]
    both = pd.concat([ours, theirs], axis=1).dropna()
    return bootstrap.over_tasks(both).map(lambda x: x[..., :settings].max(-1) / x[..., settings:].max(-1))


def _candidates(rows: pd.DataFrame) -> pd.Series:
    """Entries that are held beside the local ones, over all layers and KV heads; NaN without a selection."""
    dense = rows[rows["method"] == DENSE]
    heads = (dense["kept_entries"] / dense["n_tokens"]).max()  # layers x KV heads
    local = {text: json.loads(text).get("selection", {}).get("local", np.nan) for text in rows["options"].unique()}
    return rows["kept_entries"] - heads * rows["options"].map(local)


@cache
def _reader(benchmark: str) -> Callable[[pd.DataFrame], Selected]:
    return lambda rows: selected.selected(rows[rows["experiment"] == benchmark])


SELECTION_QUERIES: tuple[Callable[..., Estimate], ...] = (left_out, selection_gap, selection_cost)
