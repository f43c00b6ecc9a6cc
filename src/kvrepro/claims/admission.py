"""Queries on admission: accuracy against the cache that was held (WG-KV §5.2, Figures 7 and 14), how fast a cache grows
(Table 1), and what λ, τ and the local cache do to the held-out loss (Appendices F and G, Figures 11 and 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap, cache_sizes, trade_off
from kvrepro.analysis.accuracy import SERIES
from kvrepro.analysis.bootstrap import ITEM, Estimate
from kvrepro.analysis.cache_sizes import THRESHOLD, Curve, Curves
from kvrepro.claims.comparisons import minus
from kvrepro.claims.evidence import TASKS, Evidence, NoRows
from kvrepro.errors import InputError
from kvrepro.results import DENSE, valid


def score_at_size(evidence: Evidence, method: str, size: float, benchmark: str) -> Estimate:
    """Score in percent at a cache size, mean over the tasks, between the neighbouring settings."""
    return _at(_curve(_curves(evidence, benchmark), method), size)


def score_kept_at_size(evidence: Evidence, method: str, size: float, benchmark: str, tasks=None) -> Estimate:
    """Score at a cache size over that of the full cache on the same items, by default of all tasks."""
    found = _curves(evidence, benchmark, tasks)
    score = _at(_curve(found, method), size)
    return Estimate(score.value / found.dense.value, score.draws / found.dense.draws, score.units)


def smallest_lead(evidence: Evidence, a: str, b: str, below: float, benchmark: str) -> Estimate:
    """The smallest lead of a over b in points over the cache sizes below a bound that both cover."""
    found = _curves(evidence, benchmark)
    try:
        return cache_sizes.smallest_lead(_curve(found, a), _curve(found, b), below)
    except InputError as error:
        raise NoRows(str(error)) from error


def admitted_share(evidence: Evidence, method: str, benchmark: str) -> Estimate:
    """Entries held after a context per token, layer and KV head, mean over contexts and then tasks, of the setting that
    holds most."""
    rows = valid(evidence.of(benchmark))
    full, own = (by_setting(rows, name, rows["kept_entries"]) for name in (DENSE, method))
    shares = own.div(full[DENSE, 1.0], axis=0).dropna()
    return bootstrap.over_tasks(shares).map(lambda x: x.max(-1))


def by_setting(rows: pd.DataFrame, method: str, values: pd.Series) -> pd.DataFrame:
    """Values of the rows of a method: a row an item, a column a setting. NoRows where there are none."""
    own = rows.assign(value=values.astype(float), budget=rows["budget"].fillna(0.0))  # of a trained gate there is none
    own = own[(own["method"].str.split("@").str[0] == method) & own["value"].notna()]
    if own.empty:
        raise NoRows(f"contexts of {method}")
    return bootstrap.units(bootstrap.with_units(own), ITEM, SERIES)


def lambda_effect(evidence: Evidence, quantity: str) -> Estimate:
    """The smallest fall of the normalised cache size, or the smallest rise of the held-out loss, between neighbouring
    values of λ at the paper's threshold."""
    found = _trade_off(evidence)
    places = found.along(THRESHOLD)
    if len(places) < 2:
        raise NoRows(f"several values of lambda at a threshold of {THRESHOLD}")
    sign = {"size": -1, "loss": 1}[quantity]
    return getattr(found, quantity).map(lambda x: (sign * np.diff(x[..., places], axis=-1)).min(-1))


def threshold_excess(evidence: Evidence) -> Estimate:
    """The largest ratio over λ of the held-out loss at the paper's threshold to the lowest one with the same cache on
    the frontier of all thresholds and λ (:func:`kvrepro.analysis.trade_off.lowest_loss`)."""
    found = _trade_off(evidence)
    places = found.along(THRESHOLD)
    if not places or len(found.thresholds) < 2:
        raise NoRows(f"a threshold of {THRESHOLD} and others")

    def worst(size: np.ndarray, loss: np.ndarray) -> np.ndarray:
        ratios = [loss[..., i] / trade_off.lowest_loss(size, loss, size[..., i]) for i in places]
        return np.max(ratios, axis=0)

    pairs = ((found.size.value, found.loss.value), (found.size.draws, found.loss.draws))
    return Estimate(*(worst(*pair) for pair in pairs), found.loss.units)


def local_cache_loss(evidence: Evidence, quantity: str) -> Estimate:
    """Of the frontiers of held-out loss without and with a local cache, over common cache sizes: the smallest ratio, or
    by how much the gap at the smallest size exceeds that at the largest (Appendix G, Figure 12)."""
    evidence.of(trade_off.EXPERIMENT)
    try:
        kinds = [trade_off.trade_off(evidence.rows, local) for local in (True, False)]
        sizes, local, without = trade_off.frontiers(*kinds)
    except InputError as error:
        raise NoRows(str(error)) from error
    if quantity == "ratio":
        ratio = Estimate(without.value / local.value, without.draws / local.draws, local.units)
        return ratio.map(lambda x: x.min(-1))
    if len(sizes) < 2:
        raise NoRows("several cache sizes that gates with and without a local cache have in common")
    return minus(without, local).map(lambda x: x[..., 0] - x[..., -1])


def gates_decided(evidence: Evidence) -> Estimate:
    """Share of the gates on held-out rows that are below 0.1 or above 0.9, of the λ with the fewest, at the paper's
    threshold."""
    rows = trade_off.with_settings(evidence.of(trade_off.EXPERIMENT), "decided_gates")
    rows = rows[rows["threshold"] == THRESHOLD]
    if rows.empty:
        raise NoRows(f"gates at a threshold of {THRESHOLD}")
    blocks = [bootstrap.units(part, "item", ["lambda"]).to_numpy() for _, part in rows.groupby("task")]
    return bootstrap.mean(blocks).map(lambda x: x.min(-1))


def _curves(evidence: Evidence, benchmark: str, tasks: str | Sequence[str] | None = None) -> Curves:
    """Curves over tasks of a benchmark, by default all; NoRows when one lacks, or is named and hardly answered."""
    names = (tasks,) if isinstance(tasks, str) else TASKS[benchmark] if tasks is None else tuple(tasks)
    if missing := set(names) - set(evidence.of(benchmark)["task"]):
        raise NoRows(f"tasks {', '.join(sorted(missing))}")
    if tasks is not None:
        evidence.answered(benchmark, names)
    try:
        return evidence.read(_reader(benchmark, names))
    except InputError as error:
        raise NoRows(str(error)) from error


@cache
def _reader(benchmark: str, tasks: tuple[str, ...]) -> Callable[[pd.DataFrame], Curves]:
    return lambda rows: cache_sizes.curves(rows[rows["experiment"] == benchmark], tasks)


def _curve(found: Curves, method: str) -> Curve:
    if method not in found.curves:
        raise NoRows(f"settings of {method}")
    return found.curves[method]


def _at(curve: Curve, size: float) -> Estimate:
    try:
        return curve.at(size)
    except InputError as error:
        raise NoRows(str(error)) from error


def _trade_off(evidence: Evidence) -> trade_off.TradeOff:
    evidence.of(trade_off.EXPERIMENT)
    return evidence.read(trade_off.trade_off)


ADMISSION_QUERIES: tuple[Callable[..., Estimate], ...] = (
    score_at_size,
    score_kept_at_size,
    smallest_lead,
    admitted_share,
    lambda_effect,
    threshold_excess,
    local_cache_loss,
    gates_decided,
)
