"""Queries that compare methods over several kept fractions, tasks or benchmarks (GateSight §5.2, §5.5, Appendix E)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvrepro.analysis.accuracy import Accuracy
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.claims.evidence import TASKS, Evidence, NoRows
from kvrepro.results import DENSE

GATESIGHTS = ("ruler", "scbench")  #: the benchmarks of GateSight
NINE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def shares(kept: float | str | Sequence[float]) -> tuple[float, ...]:
    """The kept fractions that a query is about: one, several, or the nine of the paper for their mean."""
    return NINE if kept == "mean" else tuple(kept) if isinstance(kept, list | tuple) else (kept,)


def at(result: Accuracy, method: str, kept: float | str) -> Estimate:
    """A method's accuracy at a kept fraction, or its mean over the nine of the paper."""
    try:
        found = [result[method, share] for share in shares(kept)]
    except KeyError as error:
        raise NoRows(f"{method} at {kept}") from error
    values, draws = np.mean([e.value for e in found]), np.mean([e.draws for e in found], axis=0)
    return Estimate(values, draws, found[0].units)


def minus(a: Estimate, b: Estimate) -> Estimate:
    """The difference of two estimates over the same units."""
    return Estimate(a.value - b.value, a.draws - b.draws, min(a.units, b.units))


def over(estimates: Sequence[Estimate], function: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """A function of the last axis, along which the estimates stand, value and draws alike."""
    stacked = Estimate(
        np.stack([e.value for e in estimates], -1),
        np.stack([e.draws for e in estimates], -1),
        min(e.units for e in estimates),
    )
    return stacked.map(function)


def apart(a: Estimate, b: Estimate) -> Estimate:
    """The difference of two estimates over units drawn apart; their draws start from one seed and are shuffled."""
    shuffled = np.random.default_rng(0).permutation(b.draws)
    return minus(a, Estimate(b.value, shuffled, b.units))


def leads(evidence: Evidence, a: str, b: str, kept: Sequence[float], benchmark: str, tasks=None) -> list[Estimate]:
    """The accuracy of a minus that of b at each kept fraction, in points."""
    result = evidence.accuracy(benchmark, [(method, share) for share in kept for method in (a, b)], tasks)
    found = [minus(at(result, a, share), at(result, b, share)) for share in kept]
    if not np.isfinite([lead.value for lead in found]).all():
        raise NoRows(f"a valid answer of {a} and {b}")
    return found


def _largest(x: np.ndarray) -> np.ndarray:
    """The entry of the last axis that is farthest from zero, with its sign."""
    return np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]


#: What a query makes of several leads.
OF_LEADS = {"smallest": lambda x: x.min(-1), "largest": lambda x: x.max(-1), "farthest": _largest}


def extreme_lead(
    evidence: Evidence, a: str, b: str, which: str, benchmark: str, kept=NINE, tasks=None, size: bool = False
) -> Estimate:
    """The smallest or largest lead of a over b among kept fractions, or the one farthest from zero; with ``size`` how
    far that is."""
    found = over(leads(evidence, a, b, shares(kept), benchmark, tasks), OF_LEADS[which])
    return found.map(np.abs) if size else found


def place_of_largest_lead(evidence: Evidence, a: str, b: str, benchmark: str, tasks=None) -> Estimate:
    """The kept fraction, of the nine, at which the lead of a over b is largest, the smallest of several."""
    return over(leads(evidence, a, b, NINE, benchmark, tasks), lambda x: np.asarray(NINE)[x.argmax(-1)])


def lead_over_best(evidence: Evidence, a: str, others: Sequence[str], kept: float, benchmark: str, tasks=None):
    """The accuracy of a minus the highest of several others, in points."""
    result = evidence.accuracy(benchmark, [(method, kept) for method in (a, *others)], tasks)
    return over([minus(at(result, a, kept), at(result, other, kept)) for other in others], lambda x: x.min(-1))


def best_pairs(evidence: Evidence, method: str, others: Sequence[str], kept: float, models: Sequence[str]) -> Estimate:
    """Pairs of a model and a benchmark of GateSight on which no other method has a higher mean accuracy."""
    leads_over_best = [
        lead_over_best(evidence.beside(model), method, others, kept, benchmark)
        for model in models
        for benchmark in GATESIGHTS
    ]
    if not np.isfinite([lead.value for lead in leads_over_best]).all():
        raise NoRows(f"a valid answer of {method} and each of {', '.join(others)}")
    return over(leads_over_best, lambda x: (x >= 0).sum(-1).astype(float))


def lead_between_tasks(
    evidence: Evidence, a: str, b: str, kept: float | str, benchmark: str, tasks: Sequence[str]
) -> Estimate:
    """The lead of a over b on the mean of ``tasks`` less that on the mean of the benchmark's other tasks."""
    others = [task for task in TASKS[benchmark] if task not in tasks]
    own, other = (
        over(leads(evidence, a, b, shares(kept), benchmark, part), lambda x: x.mean(-1)) for part in (tasks, others)
    )
    return apart(own, other)


def tasks_share_of_lead(
    evidence: Evidence, a: str, b: str, kept: float, benchmark: str, tasks: Sequence[str]
) -> Estimate:
    """Percent of the lead of a over b on the mean of all tasks that comes from some of them. NoRows where a does not
    lead with its whole interval: there is then nothing to share."""
    of = {task: leads(evidence, a, b, (kept,), benchmark, task)[0] for task in TASKS[benchmark]}
    total = over(list(of.values()), lambda x: x.sum(-1))
    if total.low <= 0:
        raise NoRows(f"a lead of {a} over {b}")
    part = over([of[task] for task in tasks], lambda x: x.sum(-1))
    return over([part, total], lambda x: 100 * x[..., 0] / np.where(x[..., 1] > 0, x[..., 1], np.nan))


def budgets_won_by_either(evidence: Evidence, a: str, b: str, benchmark: str) -> Estimate:
    """The smaller of the numbers of kept fractions at which a is ahead of b and behind it."""
    counts = over(
        leads(evidence, a, b, NINE, benchmark), lambda x: np.stack([(x > 0).sum(-1), (x < 0).sum(-1)], -1).min(-1)
    )
    return counts.map(lambda x: x.astype(float))


def budgets_ahead(evidence: Evidence, a: str, b: str, benchmark: str, tasks=None) -> Estimate:
    """The number of the nine kept fractions at which a is ahead of b."""
    return over(leads(evidence, a, b, NINE, benchmark, tasks), lambda x: (x > 0).sum(-1).astype(float))


def tasks_lost_everywhere(evidence: Evidence, a: str, b: str, benchmark: str) -> Estimate:
    """Tasks of the benchmark on which b is ahead of a at all nine kept fractions."""
    lost = [over(leads(evidence, a, b, NINE, benchmark, task), lambda x: (x < 0).all(-1)) for task in TASKS[benchmark]]
    return over(lost, lambda x: x.sum(-1).astype(float))


def tasks_never_behind(evidence: Evidence, a: str, b: str, benchmark: str) -> Estimate:
    """Tasks of the benchmark on which a is at least as accurate as b at each of the nine kept fractions."""
    won = [over(leads(evidence, a, b, NINE, benchmark, task), lambda x: (x >= 0).all(-1)) for task in TASKS[benchmark]]
    return over(won, lambda x: x.sum(-1).astype(float))


def lowest_accuracy(evidence: Evidence, method: str, benchmark: str, tasks=None) -> Estimate:
    """The lowest accuracy of a method among the nine kept fractions."""
    return over(_accuracies(evidence, method, NINE, benchmark, tasks), lambda x: x.min(-1))


def highest_accuracy(evidence: Evidence, method: str, kept: Sequence[float], benchmark: str, tasks=None) -> Estimate:
    """The highest accuracy of a method among some kept fractions."""
    return over(_accuracies(evidence, method, kept, benchmark, tasks), lambda x: x.max(-1))


def _accuracies(evidence: Evidence, method: str, kept: Sequence[float], benchmark: str, tasks) -> list[Estimate]:
    result = evidence.accuracy(benchmark, [(method, share) for share in kept], tasks)
    return [at(result, method, share) for share in kept]


def tasks_won_on_all(evidence: Evidence, a: str, b: str, kept: float) -> Estimate:
    """Tasks of both benchmarks of GateSight on which a is at least as accurate as b."""
    won = [
        leads(evidence, a, b, (kept,), benchmark, task)[0].map(lambda x: x >= 0)
        for benchmark in GATESIGHTS
        for task in TASKS[benchmark]
    ]
    return over(won, lambda x: x.sum(-1).astype(float))


def accuracy_retained(evidence: Evidence, method: str, kept: float, benchmark: str, tasks=None) -> Estimate:
    """Accuracy in percent of that of the unpruned model."""
    result = evidence.accuracy(benchmark, [(method, kept), (DENSE, 1.0)], tasks)
    own, whole = at(result, method, kept), at(result, DENSE, 1.0)
    if not whole.value:
        raise NoRows("an answer of the unpruned model")
    return over([own, whole], lambda x: 100 * x[..., 0] / np.maximum(x[..., 1], 1e-9))


COMPARISON_QUERIES = (
    extreme_lead,
    place_of_largest_lead,
    lead_over_best,
    best_pairs,
    lead_between_tasks,
    tasks_share_of_lead,
    budgets_won_by_either,
    budgets_ahead,
    tasks_lost_everywhere,
    tasks_never_behind,
    lowest_accuracy,
    highest_accuracy,
    tasks_won_on_all,
    accuracy_retained,
)
