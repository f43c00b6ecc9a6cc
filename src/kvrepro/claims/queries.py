"""The query functions of the ledger: each computes one number, with its 95 % interval, from tidy rows of one model.

Names and parameters are declared in ``workflow/schemas/claims.schema.yaml``. A query that the rows cannot answer raises
:class:`NoRows`; its claim is then *not run here*.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap, summary
from kvrepro.analysis.accuracy import SERIES, Accuracy, accuracy
from kvrepro.analysis.bootstrap import DRAWS, FEW, Estimate
from kvrepro.results import valid

NINE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: Names of the ledger for what the rows name otherwise.
PREDICTOR_NAMES = {
    "value_norm": "v_preceding",
    "forgetting": "forget",
    "slow_value_norm": "v_slow",
    "slow_write": "write_slow",
    "single_head_oracle": "oracle",
}
LABEL_CHECKS = {"closed_form_error": "closed_form_error", "reconstruction_error": "module_error", "coverage": "covered"}


class NoRows(LookupError):
    """The rows at hand cannot answer a query."""


@dataclass
class Evidence:
    """All rows of one model in one tier."""

    model: str
    rows: pd.DataFrame
    _cache: dict = field(default_factory=dict, repr=False)

    def of(self, experiment: str) -> pd.DataFrame:
        """Rows of one experiment; NoRows when there are none."""
        found = self.rows[self.rows["experiment"] == experiment]
        if found.empty:
            raise NoRows(experiment)
        return found

    def accuracy(self, benchmark: str, tasks: str | list[str] | None = None) -> Accuracy:
        """Accuracy over tasks of a benchmark, computed once."""
        names = (tasks,) if isinstance(tasks, str) else None if tasks is None else tuple(tasks)
        if (benchmark, names) not in self._cache:
            rows = self.of(benchmark)
            if names and not set(names) <= set(rows["task"]):
                raise NoRows(f"tasks {names}")
            self._cache[benchmark, names] = accuracy(rows, names)
        return self._cache[benchmark, names]

    @cached_property
    def predictors(self) -> pd.DataFrame:
        """Metrics of the predictors per document and layer."""
        return summary.with_layer(self.of("predictors"))


def exact(value: float) -> Estimate:
    """A number that was counted over everything there is, and not estimated from a sample."""
    return Estimate(np.float64(value), np.full(DRAWS, np.float64(value)), FEW)


def at(result: Accuracy, method: str, kept: float | str) -> Estimate:
    """A method's accuracy at a kept fraction, or its mean over the nine of the paper."""
    try:
        found = [result[method, share] for share in (NINE if kept == "mean" else (kept,))]
    except KeyError as error:
        raise NoRows(f"{method} at {kept}") from error
    values, draws = np.mean([e.value for e in found]), np.mean([e.draws for e in found], axis=0)
    return Estimate(values, draws, found[0].units)


def minus(a: Estimate, b: Estimate) -> Estimate:
    """The difference of two estimates over the same units."""
    return Estimate(a.value - b.value, a.draws - b.draws, min(a.units, b.units))


def accuracy_value(evidence: Evidence, method: str, kept: float | str, benchmark: str, tasks=None) -> Estimate:
    """Accuracy in percent, mean over items and then tasks."""
    return at(evidence.accuracy(benchmark, tasks), method, kept)


def accuracy_difference(evidence: Evidence, a: str, b: str, kept: float | str, benchmark: str, tasks=None) -> Estimate:
    """Accuracy of a minus that of b, in points, on the same items."""
    result = evidence.accuracy(benchmark, tasks)
    return minus(at(result, a, kept), at(result, b, kept))


def accuracy_min_difference(evidence: Evidence, a: str, b: str, benchmark: str, tasks=None) -> Estimate:
    """The smallest difference over the kept fractions below 1 at which both were run."""
    result = evidence.accuracy(benchmark, tasks)
    shares = {m: {s for n, s in result.series if n == m and s < 1} for m in (a, b)}
    if not (both := sorted(shares[a] & shares[b])):
        raise NoRows(f"{a} and {b}")
    gaps = [minus(at(result, a, s), at(result, b, s)) for s in both]
    draws = np.min([gap.draws for gap in gaps], axis=0)
    return Estimate(np.min([gap.value for gap in gaps]), draws, gaps[0].units)


def tasks_won(evidence: Evidence, a: str, b: str, kept: float, benchmark: str) -> Estimate:
    """Tasks on which a is at least as accurate as b."""
    won = []
    for task in evidence.of(benchmark)["task"].unique():
        result = evidence.accuracy(benchmark, task)
        gap = minus(at(result, a, kept), at(result, b, kept))
        won.append(gap.map(lambda x: (x >= 0).astype(float)))
    return Estimate(sum(w.value for w in won), sum(w.draws for w in won), min(w.units for w in won))


def cache_share(evidence: Evidence, method: str, kept: float, benchmark: str) -> Estimate:
    """Bytes held over bytes held by the unpruned cache, mean over contexts."""
    rows = valid(evidence.of(benchmark))
    held = rows.pivot_table(index=["task", "item"], columns=SERIES, values="bytes_held", aggfunc="first")
    if (method, kept) not in held or ("dense", 1.0) not in held:
        raise NoRows(f"{method} at {kept}")
    share = (held[method, kept] / held["dense", 1.0]).dropna().to_numpy()
    return bootstrap.mean([share[:, None]]).map(lambda x: x[..., 0])


def budget_error(evidence: Evidence, method: str, benchmark: str) -> Estimate:
    """Largest difference between entries kept and the budget of GateSight §2, over all rows, failed ones included."""
    rows = evidence.of(benchmark)
    dense, own = rows[rows["method"] == "dense"], rows[rows["method"] == method]
    if dense.empty or own.empty:
        raise NoRows(method)
    caches = int((dense["kept_entries"] / dense["n_tokens"]).iloc[0])  # layers x KV heads
    body = (own["budget"] * (own["n_tokens"] - own["protected"])).round()
    return exact((own["kept_entries"] - caches * (own["protected"] + body)).abs().max())


def identity_rate(evidence: Evidence, benchmark: str) -> Estimate:
    """Share of answers at kept fraction 1.0 with the tokens of the dense model."""
    rows = evidence.of(benchmark)
    whole = rows[(rows["budget"] == 1.0) & (rows["method"] != "dense")]
    if whole.empty:
        raise NoRows("kept fraction 1.0")
    return exact(1 - whole["failed_checks"].str.contains("identity").mean())


def label_check(evidence: Evidence, metric: str) -> Estimate:
    """The worst value of a check of the labels over all documents."""
    rows = evidence.of("label_checks")
    values = rows.loc[rows["metric"] == LABEL_CHECKS[metric], "value"]
    if values.empty:
        raise NoRows(metric)
    return exact(values.min() if metric == "coverage" else values.max())


def gate_span(evidence: Evidence, statistic: str) -> Estimate:
    """Smallest or largest mean output gate of a layer over the label corpora, or their ratio."""
    rows = summary.with_layer(evidence.of("layer_gates"))
    wide = bootstrap.units(rows, ["task", "item"], ["layer"]).to_numpy()
    pick: Callable = {
        "min": lambda x: x.min(-1),
        "max": lambda x: x.max(-1),
        "ratio": lambda x: x.max(-1) / x.min(-1),
    }[statistic]
    return bootstrap.mean([wide]).map(pick)


def example_document(evidence: Evidence, statistic: str) -> Estimate:
    """Correlation of the two traces of Figure 5."""
    rows = evidence.of("example_document")
    return exact({"correlation": json.loads(rows["options"].iloc[0])["spearman"]}[statistic])


def predictor_value(evidence: Evidence, predictor: str, metric: str, layer=None, corpus=None) -> Estimate:
    """A predictor's metric: mean over KV heads, documents and attention layers, or in one layer or kind of text."""
    return _predictors(evidence, [predictor], metric, layer, corpus).map(lambda x: x[..., 0])


def predictor_difference(evidence: Evidence, a: str, b: str, metric: str, layer=None, corpus=None) -> Estimate:
    """A metric of a minus that of b on the same documents."""
    return _predictors(evidence, [a, b], metric, layer, corpus).map(lambda x: x[..., 0] - x[..., 1])


def predictor_ratio(evidence: Evidence, a: str, b: str, metric: str) -> Estimate:
    """A metric of a over that of b on the same documents."""
    return _predictors(evidence, [a, b], metric).map(lambda x: x[..., 0] / x[..., 1])


def predictor_layers_won(evidence: Evidence, a: str, b: str, metric: str) -> Estimate:
    """Share of attention layers in which a has the higher metric."""
    layers = sorted(evidence.predictors["layer"].unique())
    won = [predictor_difference(evidence, a, b, metric, layer=layer).map(lambda x: x > 0) for layer in layers]
    return _share(won)


def predictor_corpora_won(evidence: Evidence, a: str, b: str, metric: str) -> Estimate:
    """Share of corpora on which a has the higher metric."""
    corpora = sorted(evidence.predictors["task"].unique())
    won = [_predictors(evidence, [a, b], metric, names=[c]).map(lambda x: x[..., 0] > x[..., 1]) for c in corpora]
    return _share(won)


def _share(won: list[Estimate]) -> Estimate:
    return Estimate(np.mean([w.value for w in won]), np.mean([w.draws for w in won], axis=0), min(w.units for w in won))


def _predictors(evidence: Evidence, methods: list[str], metric: str, layer=None, kind=None, names=None) -> Estimate:
    """A metric of several predictors over the same documents, in one layer, kind of text or corpora."""
    rows, metric = evidence.predictors, metric.replace("_", "@")
    methods = [PREDICTOR_NAMES.get(m, m) for m in methods]
    if layer is not None:
        rows = rows[rows["layer"] == layer]
    if kind is not None:
        names = summary.corpora_of_kind(rows["task"].unique(), kind)
    if names is not None:
        rows = rows[rows["task"].isin(names)]
    if set(methods) - set(rows.loc[rows["metric"] == metric, "method"]):
        raise NoRows(f"{metric} of {', '.join(methods)}")
    return summary.estimate(rows, metric, methods)


QUERIES: dict[str, Callable[..., Estimate]] = {
    f.__name__: f
    for f in (
        accuracy_value,
        accuracy_difference,
        accuracy_min_difference,
        tasks_won,
        cache_share,
        budget_error,
        identity_rate,
        label_check,
        gate_span,
        example_document,
        predictor_value,
        predictor_difference,
        predictor_ratio,
        predictor_layers_won,
        predictor_corpora_won,
    )
}


def ask(evidence: Evidence, function: str, parameters: dict[str, Any]) -> Estimate:
    """The answer of one call of a query; NoRows when the rows at hand cannot give it."""
    estimate = QUERIES[function](evidence, **parameters)
    if not np.isfinite(estimate.value):
        raise NoRows(f"{function}{parameters} has no value")
    return estimate
