"""The query functions of the ledger: each computes one number, with its 95 % interval, from tidy rows of one model.

Names and parameters are declared in ``workflow/schemas/claims.schema.yaml``. A query that the rows cannot answer raises
:class:`NoRows`; its claim is then *not run here*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap, summary
from kvrepro.analysis.accuracy import SERIES
from kvrepro.analysis.bootstrap import ITEM, Estimate
from kvrepro.claims.admission import ADMISSION_QUERIES
from kvrepro.claims.bounded import BOUNDED_QUERIES
from kvrepro.claims.comparisons import COMPARISON_QUERIES, apart, at, minus, shares
from kvrepro.claims.evidence import TASKS, Evidence, NoRows, exact
from kvrepro.claims.growth import GROWTH_QUERIES
from kvrepro.claims.latency import LATENCY_QUERIES
from kvrepro.claims.ledger import EVERY, Query
from kvrepro.claims.observations import OBSERVATION_QUERIES
from kvrepro.claims.patterns import PATTERN_QUERIES
from kvrepro.claims.scorers import SCORER_QUERIES
from kvrepro.claims.scoring import SCORING_QUERIES
from kvrepro.claims.selection import SELECTION_QUERIES
from kvrepro.claims.training import TRAINING_QUERIES
from kvrepro.results import DENSE, valid


def accuracy_value(
    evidence: Evidence, method: str, kept: float | str, benchmark: str, tasks=None, length: int | None = None
) -> Estimate:
    """Accuracy in percent, mean over items and then tasks."""
    result = evidence.accuracy(benchmark, [(method, share) for share in shares(kept)], tasks, length)
    return at(result, method, kept)


def accuracy_difference(
    evidence: Evidence, a: str, b: str, kept: float | str, benchmark: str, tasks=None, length: int | None = None
) -> Estimate:
    """Accuracy of a minus that of b, in points, on the items that are valid for both."""
    series = [(method, share) for method in (a, b) for share in shares(kept)]
    result = evidence.accuracy(benchmark, series, tasks, length)
    return minus(at(result, a, kept), at(result, b, kept))


def tasks_won(evidence: Evidence, a: str, b: str, kept: float, benchmark: str, length: int | None = None) -> Estimate:
    """Tasks of the benchmark on which a is at least as accurate as b."""
    won = []
    for task in TASKS.get(benchmark) or evidence.of(benchmark)["task"].unique():
        gap = accuracy_difference(evidence, a, b, kept, benchmark, task, length)
        won.append(gap.map(lambda x: np.where(np.isnan(x), np.nan, x >= 0)))
    return Estimate(sum(w.value for w in won), sum(w.draws for w in won), min(w.units for w in won))


def cache_share(evidence: Evidence, method: str, kept: float, benchmark: str) -> Estimate:
    """Bytes held over bytes held by the unpruned cache, mean over contexts and then tasks."""
    rows = valid(evidence.of(benchmark))
    return bootstrap.over_tasks(_of_unpruned(rows, rows["bytes_held"], method, kept)).map(lambda x: x[..., 0])


def _of_unpruned(rows: pd.DataFrame, values: pd.Series, method: str, kept: float) -> pd.DataFrame:
    """What a method has in each context over what the unpruned cache has: a row an item, one column."""
    held = bootstrap.units(bootstrap.with_units(rows).assign(value=values.astype(float)), ITEM, SERIES)
    if (method, kept) not in held or (DENSE, 1.0) not in held:
        raise NoRows(f"{method} at {kept}")
    return (held[method, kept] / held[DENSE, 1.0]).dropna().to_frame()


def index_keys(evidence: Evidence, method: str, kept: float, benchmark: str) -> Estimate:
    """Index keys that a sparse attention's pruned cache holds for each kept token, mean over contexts and then tasks:
    from the bytes that it holds for each, as the unpruned cache of transformers holds a raw index key a token."""
    sizes, rows = _shape(evidence), valid(evidence.of(benchmark))
    if not sizes.get("index_head_dim"):
        raise NoRows("an index")
    key, vectors = sizes["index_head_dim"], 2 * sizes["head_dim"] * sizes["kv_heads"]
    share = _of_unpruned(rows, rows["bytes_held"] / rows["kept_entries"], method, kept)
    return bootstrap.over_tasks((share * (vectors + key) - vectors) / key).map(lambda x: x[..., 0])


def _shape(evidence: Evidence) -> dict[str, float]:
    rows = evidence.rows[evidence.rows["experiment"] == "shape"]
    return dict(zip(rows["metric"], rows["value"], strict=True))


def budget_error(evidence: Evidence, method: str, benchmark: str) -> Estimate:
    """Largest difference between entries kept and the budget of GateSight §2, over all rows, failed ones included.

    Of a sparse attention the budget is that of Appendix H: of each layer the nearest multiple of a block.
    """
    rows = evidence.of(benchmark)
    dense, own = rows[rows["method"] == DENSE], rows[rows["method"] == method]
    if dense.empty or own.empty:
        raise NoRows(method)
    caches = int((dense["kept_entries"] / dense["n_tokens"]).iloc[0])  # layers x KV heads
    body = (own["budget"] * (own["n_tokens"] - own["protected"])).round()
    budget, block = own["protected"] + body, _shape(evidence).get("block", 1)
    whole = np.minimum(block * np.floor(budget / block + 0.5), own["n_tokens"] // block * block)
    budget = budget.where(budget == own["n_tokens"], whole)
    return exact((own["kept_entries"] - caches * budget).abs().max())


def identity_rate(evidence: Evidence, benchmark: str) -> Estimate:
    """Share of answers at kept fraction 1.0 with the tokens of the dense model."""
    rows = evidence.of(benchmark)
    whole = rows[(rows["budget"] == 1.0) & (rows["method"] != DENSE)]
    if whole.empty:
        raise NoRows("kept fraction 1.0")
    return exact(1 - whole["failed_checks"].str.contains("identity").mean())


def label_check(evidence: Evidence, metric: str, unit: str = "error") -> Estimate:
    """The worst value of a check of the labels over all documents, of unit ``%`` in percent."""
    rows = evidence.of("label_checks")
    values = rows.loc[rows["metric"] == metric, "value"]
    if values.empty:
        raise NoRows(metric)
    return exact((values.min() if metric == "covered" else values.max()) * (100 if unit == "%" else 1))


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


def median_correlation(evidence: Evidence) -> Estimate:
    """Median over documents of the correlation of the two traces that Figure 5 draws; documents are resampled."""
    rows = evidence.of("example_document")
    values = rows.loc[rows["metric"] == "spearman", "value"].to_numpy()
    if not len(values):
        raise NoRows("correlations of documents")
    return bootstrap.median(values)


def predictor_value(evidence: Evidence, predictor: str, metric: str, layer=None, corpus=None) -> Estimate:
    """A predictor's metric: mean over KV heads, documents and attention layers, or in one layer or some corpora."""
    return _predictors(evidence, [predictor], metric, layer, corpus).map(lambda x: x[..., 0])


def predictor_difference(evidence: Evidence, a: str, b: str, metric: str, layer=None, corpus=None) -> Estimate:
    """A metric of a minus that of b on the same documents."""
    return _predictors(evidence, [a, b], metric, layer, corpus).map(lambda x: x[..., 0] - x[..., 1])


def predictor_multiple(evidence: Evidence, a: str, b: str, factor: float, metric: str, part: str) -> Estimate:
    """The metric of a less ``factor`` times that of b (excess), or that of b (base); a multiple needs both positive."""
    both = _predictors(evidence, [a, b], metric)
    return both.map(lambda x: x[..., 0] - factor * x[..., 1] if part == "excess" else x[..., 1])


def predictor_lead(evidence: Evidence, a: str, b: str, metric: str, corpus: Sequence[str], other: str) -> Estimate:
    """The lead of a over b on ``corpus`` less that on the corpus ``other``, whose documents are other ones."""
    here = predictor_difference(evidence, a, b, metric, corpus=corpus)
    there = predictor_difference(evidence, a, b, metric, corpus=[other])
    return apart(here, there)


def predictor_layers_won(evidence: Evidence, a: str, b: str, metric: str) -> Estimate:
    """Share of attention layers in which a has the higher metric."""
    layers = sorted(evidence.predictors["layer"].unique())
    won = [predictor_difference(evidence, a, b, metric, layer=layer).map(lambda x: x > 0) for layer in layers]
    return _share(won)


def predictor_corpora_won(evidence: Evidence, a: str, b: str, metric: str) -> Estimate:
    """Share of corpora on which a has the higher metric."""
    won = [
        predictor_difference(evidence, a, b, metric, corpus=[corpus]).map(lambda x: x > 0)
        for corpus in evidence.corpora
    ]
    return _share(won)


def _share(won: list[Estimate]) -> Estimate:
    return Estimate(np.mean([w.value for w in won]), np.mean([w.draws for w in won], axis=0), min(w.units for w in won))


def _predictors(
    evidence: Evidence, methods: list[str], metric: str, layer: int | None = None, corpora: Sequence[str] | None = None
) -> Estimate:
    """A metric of several predictors over the same documents, in one layer or some corpora."""
    rows = evidence.predictors
    if layer is not None:
        rows = rows[rows["layer"] == layer]
    if corpora is not None:
        rows = rows[rows["task"].isin(corpora)]
    if set(methods) - set(rows.loc[rows["metric"] == metric, "method"]):
        raise NoRows(f"{metric} of {', '.join(methods)}")
    return summary.estimate(rows, metric, methods)


QUERIES: dict[str, Callable[..., Estimate]] = {
    f.__name__: f
    for f in (
        accuracy_value,
        accuracy_difference,
        tasks_won,
        cache_share,
        index_keys,
        budget_error,
        identity_rate,
        label_check,
        gate_span,
        median_correlation,
        predictor_value,
        predictor_difference,
        predictor_multiple,
        predictor_lead,
        predictor_layers_won,
        predictor_corpora_won,
        *COMPARISON_QUERIES,
        *SCORER_QUERIES,
        *LATENCY_QUERIES,
        *OBSERVATION_QUERIES,
        *ADMISSION_QUERIES,
        *BOUNDED_QUERIES,
        *SCORING_QUERIES,
        *SELECTION_QUERIES,
        *PATTERN_QUERIES,
        *GROWTH_QUERIES,
        *TRAINING_QUERIES,
    )
}


def calls(evidence: Evidence, query: Query) -> dict[str, dict[str, Any]]:
    """The calls of a query; one over every other corpus has one for each corpus of the rows."""
    if query.values != (EVERY,):
        return query.calls()
    others = [corpus for corpus in evidence.corpora if corpus not in query.parameters["corpus"]]
    if not others:
        raise NoRows("other corpora")
    return replace(query, values=tuple(others)).calls()


def ask(evidence: Evidence, function: str, parameters: dict[str, Any]) -> Estimate:
    """The answer of one call of a query; NoRows when the rows at hand cannot give it."""
    estimate = QUERIES[function](evidence, **parameters)
    if not np.isfinite(estimate.value):
        raise NoRows(f"{function}{parameters} has no value")
    return estimate
