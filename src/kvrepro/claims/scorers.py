"""Queries about the scorers of SCBench (GateSight Appendix A)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.scorers import by_scorer, official_minus_revised, order_changes
from kvrepro.benchmarks.scbench import metrics
from kvrepro.claims.evidence import TASKS, Evidence, NoRows, exact
from kvrepro.errors import InputError
from kvrepro.results import DENSE, REFERENCES

BENCHMARK = "scbench"
OFFICIAL = {"qa_chn": metrics.characters_f1, "choice_eng": metrics.choice}  #: the published metrics that are revised


def _scored(evidence: Evidence, tasks: Sequence[str]):
    rows = evidence.of(BENCHMARK)
    if missing := set(tasks) - set(rows["task"]):
        raise NoRows(f"tasks {', '.join(sorted(missing))}")
    try:
        return by_scorer(rows[rows["method"] != REFERENCES[1]], tasks)
    except InputError as error:
        raise NoRows(str(error)) from error


def scorer_shift(evidence: Evidence, tasks: str, unpruned: bool = False) -> Estimate:
    """The revised score of a task minus its official one in points: mean over all methods and kept fractions, the
    unpruned model included, or of that model alone."""
    evidence.answered(BENCHMARK, [tasks])
    scored = _scored(evidence, [tasks])
    shift = official_minus_revised(scored).map(lambda x: -x)
    place = scored["revised"].series.get_loc((DENSE, 1.0)) if unpruned else slice(None)
    return shift.map(lambda x: x[..., place] if unpruned else x.mean(-1))


def scorer_mean_shift(evidence: Evidence, which: str) -> Estimate:
    """The official mean over all tasks minus the revised one in points: the smallest or largest over methods and kept
    fractions below 1."""
    scored = _scored(evidence, TASKS[BENCHMARK])
    series = scored["revised"].series
    pruned = np.array([method not in REFERENCES and kept < 1 for method, kept in series])
    pick = {"smallest": np.min, "largest": np.max}[which]
    return official_minus_revised(scored).map(lambda x: pick(x[..., pruned], axis=-1))


def scorer_order_changes(evidence: Evidence, methods: Sequence[str]) -> Estimate:
    """At how many kept fractions the official scorer puts the methods in another order than the revised one."""
    scored = _scored(evidence, TASKS[BENCHMARK])
    if missing := set(methods) - set(scored["revised"].series.get_level_values("method")):
        raise NoRows(", ".join(sorted(missing)))
    return exact(sum(order_changes(scored, methods).values()))


def official_score(evidence: Evidence, task: str, answer: str, label: str | Sequence[str] | None = None) -> Estimate:
    """The official score from 0 to 1 of an answer, by default one that is the label itself; no rows say it."""
    return exact(OFFICIAL[task](answer, answer if label is None else label))


SCORER_QUERIES = (scorer_shift, scorer_mean_shift, scorer_order_changes, official_score)
