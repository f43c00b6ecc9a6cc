"""Queries of the ledger on GateSight's observations, shapes, windows, lengths and gates (§3, §4.1, §5.6, Appendices C,
D and F): each computes one number, with its 95 % interval, from tidy rows of one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps

import numpy as np

from kvrepro.analysis import bootstrap, observed, summary
from kvrepro.analysis.accuracy import SERIES
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.names import ABLATION, ALLOCATION_ABLATION, FIVE_TASKS, LONG_BUDGETS, SOLVABLE_TASKS, SUMMARIES
from kvrepro.claims.evidence import TASKS, Evidence, NoRows, exact
from kvrepro.errors import InputError
from kvrepro.results import DENSE

NINE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ENDS: dict[str, Callable] = {"min": np.min, "max": np.max}
LEAST_COST = 0.01  #: points of next-token accuracy; a smaller cost counts as this much in a ratio
OBSERVATION_QUERIES: list[Callable[..., Estimate]] = []


def _query(function: Callable[..., Estimate]) -> Callable[..., Estimate]:
    """List a query; what the readers of rows cannot find is NoRows."""

    @wraps(function)
    def ask(*args, **parameters) -> Estimate:
        try:
            return function(*args, **parameters)
        except (InputError, KeyError) as error:
            raise NoRows(str(error)) from error

    OBSERVATION_QUERIES.append(ask)
    return ask


def _at(estimate: Estimate, place: int) -> Estimate:
    return estimate.map(lambda x: x[..., place])


def _end(estimate: Estimate, statistic: str) -> Estimate:
    return estimate.map(lambda x: ENDS[statistic](x, axis=-1))


# The model's shape


@_query
def shape(evidence: Evidence, quantity: str) -> Estimate:
    """A count of the model's shape; parameters in millions, cache_per_token in KiB."""
    rows = evidence.of("shape").set_index("metric")["value"]
    return exact(rows[quantity] / {"parameters": 1e6, "cache_per_token": 1024}.get(quantity, 1))


@_query
def cache_passes_state(evidence: Evidence) -> Estimate:
    """Thousand tokens from which on the attention cache is larger than the recurrent states."""
    rows = evidence.of("shape").set_index("metric")["value"]
    return exact(rows["state"] / rows["cache_per_token"] / 1000)


@_query
def cache_over_state(evidence: Evidence, tokens: int) -> Estimate:
    """Bytes of the attention cache over bytes of the recurrent states."""
    rows = evidence.of("shape").set_index("metric")["value"]
    return exact(tokens * rows["cache_per_token"] / rows["state"])


# Observation 1


@_query
def half_life(evidence: Evidence, statistic: str) -> Estimate:
    """Of the heads' median half-lives: their median (tokens), the longest over the shortest (span), or the least such
    span of a layer (layer_span)."""
    layers = evidence.read(observed.half_lives)["layer"].to_numpy()

    def span(x: np.ndarray) -> np.ndarray:
        return x.max(-1) / x.min(-1)

    pick: Callable = {
        "median": lambda x: np.median(x, axis=-1),
        "span": span,
        "layer_span": lambda x: np.min([span(x[..., layers == k]) for k in np.unique(layers)], axis=0),
    }[statistic]
    return evidence.read(observed.median_half_lives).map(pick)


@_query
def slow_heads(evidence: Evidence, threshold: float) -> Estimate:
    """Heads whose median half-life over all documents is at least so many tokens; its interval is that of the analysed
    documents."""
    medians = evidence.read(observed.half_lives)["median"].to_numpy()
    drawn = evidence.read(observed.median_half_lives).map(lambda x: (x >= threshold).sum(-1))
    return replace(drawn, value=np.asarray((medians >= threshold).sum()))


@_query
def slow_in_documents(evidence: Evidence, threshold: float, part: str) -> Estimate:
    """Heads that are slow in at least 95 % of the documents (slow), in at most 5 % (fast), or in between (between)."""
    return _at(observed.persistence(evidence.rows, threshold), ("slow", "fast", "between").index(part))


@_query
def order_stability(evidence: Evidence, signal: str, percentile: float) -> Estimate:
    """A percentile over random pairs of documents of the correlation between their orders of all heads."""
    values = observed.stability(evidence.rows, signal)
    return observed.resampled(values, lambda x: np.percentile(x, percentile, axis=0))


@_query
def static_correlation(evidence: Evidence) -> Estimate:
    """Spearman correlation over all heads between half-lives from the weights and measured ones."""
    static = evidence.read(observed.half_lives)["static"].rank().to_numpy()

    def rho(x: np.ndarray) -> np.ndarray:
        ranks = np.argsort(np.argsort(x, axis=-1), axis=-1)
        a, b = static - static.mean(), ranks - ranks.mean(-1, keepdims=True)
        return (b @ a) / np.sqrt((a @ a) * (b * b).sum(-1))

    return evidence.read(observed.median_half_lives).map(rho)


@_query
def slow_set_overlap(evidence: Evidence, threshold: float) -> Estimate:
    """Median over documents of the Jaccard index of a document's slow set with that of all documents."""
    return bootstrap.median(observed.overlaps(evidence.rows)[threshold])


@_query
def write_share(evidence: Evidence, effect: str) -> Estimate:
    """Percent of the variance of log β‖v‖ that the head or the token explains."""
    return observed.per_document(evidence.rows, "write_variance", effect).map(lambda x: 100 * x)


@_query
def slow_heads_write(evidence: Evidence) -> Estimate:
    """Spearman correlation within a layer between half-life and mean effective write, over layers and documents."""
    return observed.per_document(evidence.rows, "slow_heads_write", "write")


# Observations 2 and 3


@_query
def summaries_end(evidence: Evidence, statistic: str) -> Estimate:
    """The least or greatest correlation with utility of the six summaries of Figure 2a over all corpora."""
    rows, found = evidence.predictors, []
    for corpus in evidence.corpora:
        found.append(summary.estimate(rows[rows["task"] == corpus], "spearman", list(SUMMARIES)))
    every = Estimate(
        np.concatenate([x.value for x in found], -1),
        np.concatenate([x.draws for x in found], -1),
        min(x.units for x in found),
    )
    return _end(every, statistic)


@_query
def predictor_layers(
    evidence: Evidence, predictor: str, metric: str, statistic: str, first: int = 1, last: int | None = None
) -> Estimate:
    """The least or greatest value of a predictor's metric over attention layers, the ``first``-th to the ``last``-th of
    the model counted from 1, by default to its end."""
    rows = evidence.predictors
    layers = sorted(rows["layer"].unique())[first - 1 : last]
    part = rows[(rows["metric"] == metric) & (rows["method"] == predictor) & rows["layer"].isin(layers)]
    if part.empty:
        raise NoRows(f"{predictor} from the {first}-th attention layer on")
    wide = bootstrap.units(part, summary.DOCUMENT, ["layer"])
    return _end(bootstrap.mean([wide.to_numpy(dtype=float)]).map(lambda x: x * summary.scale(metric)), statistic)


@_query
def decile_share(evidence: Evidence, end: str) -> Estimate:
    """Percent of the entries that slow heads write most strongly (top) or weakly (bottom), a tenth each, that belong to
    the tenth with the highest, or lowest, utility."""
    return _at(observed.deciles(evidence.rows, end), {"top": -1, "bottom": 0}[end])


@_query
def cells_above(
    evidence: Evidence, threshold: float, statistic: str | None = None, layer: int | None = None
) -> Estimate:
    """Percent of the cells of a window whose correlation with utility exceeds a threshold in absolute value: before one
    attention layer, or the least or greatest over attention layers."""
    found = observed.share_above(*observed.cells(evidence.rows, layer), threshold)
    return _end(found, statistic or "max")


@_query
def strongest_cell(evidence: Evidence) -> Estimate:
    """The greatest correlation, in absolute value, of a cell of a window with utility."""
    return observed.cells(evidence.rows)[1].map(lambda x: abs(x).max(-1))


@_query
def best_layer(evidence: Evidence, layer: int) -> Estimate:
    """The GDN layer whose effective write correlates most with the utility of an attention layer."""
    names, best, _ = observed.best_layers(*evidence.read(observed.layer_writes))
    if layer not in names:
        raise NoRows(f"attention layer {layer}")
    return _at(best, names.index(layer))


@_query
def best_layers(evidence: Evidence) -> Estimate:
    """How many GDN layers are the one that correlates most with some attention layer."""
    _, best, _ = observed.best_layers(*evidence.read(observed.layer_writes))
    return best.map(lambda x: 1 + (np.diff(np.sort(x, axis=-1), axis=-1) != 0).sum(-1))


@_query
def window_cost(evidence: Evidence) -> Estimate:
    """By how much the best GDN layer exceeds the best one of the window, greatest over attention layers. NoRows where
    all best layers are in their windows."""
    _, _, lead = observed.best_layers(*evidence.read(observed.layer_writes))
    if not lead.value.any():
        raise NoRows("an attention layer whose best GDN layer is outside its window")
    return _end(lead, "max")


# Document length and windows


def _in_set(evidence: Evidence, predictors: Sequence[str], metric: str, name: str, task: str | None = None):
    return observed.lengths(evidence.of("lengths"), metric, predictors, name, task)


@_query
def length_value(evidence: Evidence, predictor: str, metric: str, documents: str) -> Estimate:
    """A predictor's metric on a set of documents of Table 6."""
    return _at(_in_set(evidence, [predictor], metric, documents), 0)


@_query
def length_cell(evidence: Evidence, cell: str, metric: str) -> Estimate:
    """The same, of a cell such as ``age 2K``: predictor and set."""
    predictor, name = cell.split()
    return _at(_in_set(evidence, [predictor], metric, name), 0)


@_query
def length_task(evidence: Evidence, predictor: str, metric: str, documents: str, task: str) -> Estimate:
    """A predictor's metric on one task of a set."""
    return _at(_in_set(evidence, [predictor], metric, documents, task), 0)


@_query
def length_task_lead(evidence: Evidence, a: str, b: str, metric: str, documents: str, task: str) -> Estimate:
    """The lead of predictor a over b on a task of a set less the greatest one on its other tasks."""
    leads = {
        name: _in_set(evidence, [a, b], metric, documents, name).map(lambda x: x[..., 0] - x[..., 1])
        for name in FIVE_TASKS
    }
    own, rng = leads.pop(task), np.random.default_rng(0)
    others = [rng.permutation(x.draws) for x in leads.values()]  # other documents; all draws start from one seed
    return Estimate(
        own.value - np.max([x.value for x in leads.values()]),
        own.draws - np.max(others, axis=0),
        min(own.units, *(x.units for x in leads.values())),
    )


def _windows(evidence: Evidence, metric: str, *wanted: int) -> Estimate:
    """A metric at some windows, the last axis."""
    known, estimate = observed.windows(evidence.of("windows"), metric)
    if missing := [w for w in wanted if w not in known]:
        raise NoRows(f"a window of {missing[0]}")
    found = estimate.map(lambda x: x[..., [known.index(w) for w in wanted]])
    counted = metric in ("inputs", "parameters")  # over everything there is, and not sampled
    return replace(found, units=bootstrap.FEW) if counted else found


@_query
def window_value(evidence: Evidence, window: int, metric: str) -> Estimate:
    """A metric of the networks with a window, or their inputs, or their parameters in millions."""
    return _at(_windows(evidence, metric, int(window)), 0).map(lambda x: x / 1e6 if metric == "parameters" else x)


@_query
def window_cell(evidence: Evidence, cell: str) -> Estimate:
    """The same, of a cell such as ``overlap_10 6``: metric and window."""
    metric, window = cell.split()
    return _at(_windows(evidence, metric.replace("_", "@"), int(window)), 0)


@_query
def window_step(evidence: Evidence, step: str, metric: str) -> Estimate:
    """The gain of a metric with one window over another, of a step such as ``9 over 6``."""
    wide, narrow = map(int, step.split(" over "))
    return _windows(evidence, metric, wide, narrow).map(lambda x: x[..., 0] - x[..., 1])


@_query
def window_gain(evidence: Evidence, window: int, base: int, metric: str) -> Estimate:
    """The gain of a metric with one window over a base."""
    return _windows(evidence, metric, int(window), base).map(lambda x: x[..., 0] - x[..., 1])


@_query
def window_gain_per_layer(evidence: Evidence, step: str, metric: str) -> Estimate:
    """The gain of a metric per GDN layer that the window is wider, up to 6, to 9 or to 12 from 3 fewer."""
    wide = int(step.removeprefix("to_"))
    return _windows(evidence, metric, wide, wide - 3).map(lambda x: (x[..., 0] - x[..., 1]) / 3)


@_query
def window_parameters(evidence: Evidence, window: int, base: int) -> Estimate:
    """The parameters of all networks with a window over those with a base."""
    return _windows(evidence, "parameters", int(window), base).map(lambda x: x[..., 0] / x[..., 1])


# Gates and budgets


@_query
def gated_ranking(evidence: Evidence) -> Estimate:
    """Spearman correlation within a head between scores of entries with and without the output gate."""
    return observed.per_document(evidence.rows, "gated_ranking", "gated")


@_query
def closing_ratio(evidence: Evidence) -> Estimate:
    """Next-token accuracy lost by closing random heads over that lost by closing those of the lowest mean gate."""
    costs = observed.closing_costs(evidence.of("closed_heads"))
    return costs.map(lambda x: x[..., 1] / np.maximum(x[..., 0], LEAST_COST))


def _answers(
    evidence: Evidence, experiment: str, series: Sequence[tuple[str, float]], tasks: Sequence[str], length: int | None
) -> Estimate:
    """Accuracy of several series over tasks that the rows must all have, the last axis, on the items that are valid in
    all series of the experiment."""
    every = evidence.of(experiment)[SERIES].drop_duplicates().itertuples(index=False, name=None)
    result = evidence.accuracy(experiment, tuple(every), tuple(tasks), length)
    places = [result.series.get_loc(s) for s in series]
    return result.estimate.map(lambda x: x[..., places])


@_query
def closed_layers(evidence: Evidence, without: str, length: int | None = None) -> Estimate:
    """Accuracy on RULER with attention layers closed, such as ``without 3 7 11``."""
    return _at(_answers(evidence, "closed_layers", [(without, 1.0)], FIVE_TASKS, length), 0)


@_query
def closed_layers_loss(evidence: Evidence, length: int | None = None) -> Estimate:
    """Accuracy on RULER with the shallowest attention layers closed minus that of the unpruned model."""
    rows = evidence.of("closed_layers")
    fewest = min((m for m in rows["method"].unique() if m != DENSE), key=len)
    both = _answers(evidence, "closed_layers", [(fewest, 1.0), (DENSE, 1.0)], FIVE_TASKS, length)
    return both.map(lambda x: x[..., 0] - x[..., 1])


def _of_appendix_d(evidence: Evidence) -> str:
    """The experiment with the budgets of Appendix D: on contexts of a length of their own, where there are any."""
    return LONG_BUDGETS if (evidence.rows["experiment"] == LONG_BUDGETS).any() else "budgets"


@_query
def gate_in_score(evidence: Evidence, length: int | None = None) -> Estimate:
    """Accuracy of eviction by received attention with the gate in the score minus that without, mean over the kept
    fractions of the rows."""
    name = _of_appendix_d(evidence)
    rows = evidence.of(name)
    kept = sorted(rows.loc[rows["method"] == "attention", "budget"].unique())
    if not kept:
        raise NoRows("received attention")
    series = [(m, k) for m in ("attention_gated", "attention") for k in kept]
    both = _answers(evidence, name, series, FIVE_TASKS, length)
    return both.map(lambda x: x[..., : len(kept)].mean(-1) - x[..., len(kept) :].mean(-1))


RULES = {"per_layer": "gate_proportional", "1": "gate_proportional", "0.5": "exponent_0.5", "1.5": "exponent_1.5"}


@_query
def budget_cell(evidence: Evidence, cell: str, length: int | None = None) -> Estimate:
    """Accuracy over the five tasks of Appendix D, of a cell such as ``per_head 0.05``: rule and kept fraction."""
    rule, kept = cell.split()
    return _at(
        _answers(evidence, _of_appendix_d(evidence), [(RULES.get(rule, rule), float(kept))], FIVE_TASKS, length), 0
    )


@_query
def budget_by_layer(evidence: Evidence, kept: float, length: int | None = None) -> Estimate:
    """Accuracy with budgets by layer minus that by KV head, over the five tasks of Appendix D."""
    series = [("gate_proportional", kept), ("per_head", kept)]
    return _answers(evidence, _of_appendix_d(evidence), series, FIVE_TASKS, length).map(lambda x: x[..., 0] - x[..., 1])


@_query
def exponent_value(evidence: Evidence, exponent: str, kept: float, length: int | None = None) -> Estimate:
    """Accuracy with budgets proportional to a power of the gate, or flat, over the tasks that stay solvable."""
    series = [(RULES.get(exponent, exponent), kept)]
    return _at(_answers(evidence, _of_appendix_d(evidence), series, SOLVABLE_TASKS, length), 0)


def _ablation(
    evidence: Evidence, benchmark: str, rules: Sequence[str], kept: Sequence[float], tasks: Sequence[str] | None = None
) -> Estimate:
    """Accuracy of several budget rules at several kept fractions, the last two axes."""
    series = [(rule, share) for rule in rules for share in kept]
    found = _answers(evidence, "budgets", series, tasks or ABLATION[benchmark], None)
    return found.map(lambda x: x.reshape(*x.shape[:-1], len(rules), len(kept)))


@_query
def allocation_value(evidence: Evidence, allocation: str, kept: float | str, benchmark: str) -> Estimate:
    """Accuracy with a budget rule on the tasks of the allocation ablation."""
    shares = NINE if kept == "mean" else (kept,)
    return _ablation(evidence, benchmark, [allocation], shares).map(lambda x: x[..., 0, :].mean(-1))


@_query
def allocation_lead(evidence: Evidence, benchmark: str) -> Estimate:
    """The smallest lead, over the nine kept fractions, of the gate-proportional rule over the better of the others."""
    found = _ablation(evidence, benchmark, ALLOCATION_ABLATION, NINE)
    return found.map(lambda x: (x[..., 0, :] - x[..., 1:, :].max(-2)).min(-1))


@_query
def allocation_lead_over(evidence: Evidence, benchmark: str, task: str, base: str) -> Estimate:
    """Lead of the gate-proportional rule over another on a task, on the mean of the nine kept fractions."""
    both = _ablation(evidence, benchmark, ["gate_proportional", base], NINE, [task])
    return both.map(lambda x: (x[..., 0, :] - x[..., 1, :]).mean(-1))


@_query
def allocation_gap(evidence: Evidence, base: str, kept: float, benchmark: str) -> Estimate:
    """Lead of the gate-proportional rule over another at a kept fraction, on the mean of all tasks of a benchmark."""
    both = _ablation(evidence, benchmark, ["gate_proportional", base], [kept], TASKS[benchmark])
    return both.map(lambda x: x[..., 0, 0] - x[..., 1, 0])


@_query
def allocation_spread(evidence: Evidence, benchmark: str, task: str) -> Estimate:
    """Largest difference between the three budget rules on a task, on the mean of the nine kept fractions."""
    found = _ablation(evidence, benchmark, ALLOCATION_ABLATION, NINE, [task])
    return found.map(lambda x: np.ptp(x.mean(-1), axis=-1))


@_query
def allocation_totals(evidence: Evidence) -> Estimate:
    """Largest difference, over contexts and kept fractions, between the entries that the three budget rules hold."""
    rows = evidence.of("budgets")
    rows = rows[rows["method"].isin(ALLOCATION_ABLATION) & (rows["question"] == 0)]
    held = rows.pivot_table(index=["task", "item", "budget"], columns="method", values="kept_entries")
    return exact((held.max(axis=1) - held.min(axis=1)).max())
