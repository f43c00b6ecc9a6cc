"""Queries on growing caches and their bounds (WG-KV §2.2, Table 1, Figure 2b)."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from kvrepro.analysis import patterns
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.claims.evidence import Evidence, NoRows, exact
from kvrepro.results import DENSE


def growth_ratio(evidence: Evidence, quantity: str) -> Estimate:
    """A quantity of a cache that is bounded by eviction with admission over the same without, mean over documents."""
    evidence.of(patterns.GROWTH)
    both, alone = (patterns.PRIMITIVES.index(name) for name in (patterns.BOTH, patterns.EVICTION))
    found = patterns.growth(evidence.rows, quantity)
    if not patterns.growth(evidence.rows, "evictions").value[alone]:
        raise NoRows("evictions; give longer documents")
    return found.map(lambda x: x[..., both] / x[..., alone])


def entries_per_token(evidence: Evidence) -> Estimate:
    """Entries of the unmanaged cache for each token, layer and KV head, where this is farthest from one."""
    evidence.of(patterns.GROWTH)
    found = patterns.of(evidence.rows, patterns.GROWTH)
    whole = found[(found["method"] == patterns.FULL) & (found["metric"] == "entries") & (found["item"] > 0)]
    if whole.empty:
        raise NoRows("entries of a cache without admission or eviction")
    ratios = (whole["value"] / whole["item"]).to_numpy()
    return exact(ratios[np.abs(ratios - 1).argmax()])


def peak_over_budget(evidence: Evidence, method: str, benchmark: str) -> Estimate:
    """The most entries that any answer's bounded cache held, after any token, over its budget; failed rows count."""
    rows = evidence.of(benchmark)
    dense, own = rows[rows["method"] == DENSE], rows[rows["method"].str.split("@").str[0] == method]
    if dense.empty or own.empty or "peak_entries" not in own:
        raise NoRows(f"the most entries that {method} held")
    heads = (dense["kept_entries"] / dense["n_tokens"]).iloc[0]  # layers x KV heads
    budgets = own["options"].map(lambda text: json.loads(text)["bounding"]["budget"])
    return exact((own["peak_entries"] / (heads * budgets)).max())


GROWTH_QUERIES: tuple[Callable[..., Estimate], ...] = (growth_ratio, entries_per_token, peak_over_budget)
