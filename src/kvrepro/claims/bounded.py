"""Queries on reasoning under a hard budget of the cache (WG-KV §5.4, Appendix K, Figures 2b, 10 and 16).

The limit is the largest one that the whole sequence outgrows several times, as 22,000 tokens do the paper's 4,096
entries. Nothing is answered where the unpruned model hardly solves a task: what it then writes is no reasoning.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from kvrepro.analysis import bounded
from kvrepro.analysis.accuracy import unanswered
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.bounded import BENCHMARK, Bounded, Setting
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.errors import InputError

EVICTION = "snapkv"  #: the bounding method that the statements are about
TOGETHER = 0.32  #: the λ that the paper combines with eviction (Appendix K.2)


def bounded_accuracy(evidence: Evidence, series: str, trade_off: float = TOGETHER, relative: str = "value") -> Estimate:
    """Accuracy in percent of the ``full`` cache or of gates alone (``unbounded``) without a limit, or under the limit
    of ``eviction`` alone, of ``both``, or of ``admission`` strict enough never to reach it.

    ``relative``: as it is, minus that of the full cache in points (``minus_full``), or over it (``over_full``).
    """
    found = _found(evidence)
    place = _place(found, _setting(found, series, trade_off))
    pick: Callable[[np.ndarray], np.ndarray] = {
        "value": lambda x: x[..., place],
        "minus_full": lambda x: x[..., place] - x[..., found.full],
        "over_full": lambda x: x[..., place] / np.where(x[..., found.full] > 0, x[..., found.full], np.nan),
    }[relative]
    return found.accuracy.map(pick)


def bounded_evictions(evidence: Evidence, trade_off: float) -> Estimate:
    """Evictions in an answer under the limit with admission at a λ, mean over items."""
    found = _found(evidence)
    place = _place(found, _setting(found, "both", trade_off))
    return found.evictions.map(lambda x: x[..., place])


def evictions_over_alone(evidence: Evidence) -> Estimate:
    """The largest ratio, over λ, of evictions under the limit with admission to those without."""
    found = _found(evidence)
    alone, limit = _place(found, _setting(found, "eviction")), _limit(found)
    places = found.where(lambda s: s.bounding == EVICTION and s.budget == limit and s.trade_off is not None)
    if not places or not found.evictions.value[alone]:
        raise NoRows("evictions with and without admission")
    return found.evictions.map(lambda x: (x[..., places] / np.maximum(x[..., [alone]], 1e-9)).max(-1))


def unbounded_fall(evidence: Evidence, quantity: str) -> Estimate:
    """The smallest fall, between neighbouring values of λ without a limit, of ``accuracy`` in points or of the
    ``entries`` that a head holds at the end of an answer."""
    found = _found(evidence)
    places = found.where(lambda s: s.trade_off is not None and s.budget is None)
    if len(places) < 2:
        raise NoRows("several values of lambda without a limit")
    return getattr(found, quantity).map(lambda x: -np.diff(x[..., places], axis=-1).max(-1))


def _found(evidence: Evidence) -> Bounded:
    rows = evidence.of(BENCHMARK)
    if tasks := unanswered(rows):
        raise NoRows(f"answers of the unpruned model to {', '.join(tasks)}")
    try:
        return evidence.read(_read)
    except InputError as error:
        raise NoRows(str(error)) from error


def _read(rows: pd.DataFrame) -> Bounded:
    return bounded.bounded(rows[rows["experiment"] == BENCHMARK])


def _limit(found: Bounded) -> int:
    limit = bounded.several(found)
    if limit is None:
        raise NoRows("a limit that the full cache outgrows several times")
    return limit


def _setting(found: Bounded, series: str, trade_off: float = TOGETHER) -> Setting:
    if series == "full":
        return Setting()
    if series == "unbounded":
        return Setting(trade_off)
    limit = _limit(found)
    if series == "eviction":
        return Setting(None, limit, EVICTION)
    if series == "both":
        return Setting(trade_off, limit, EVICTION)
    both = found.where(lambda s: s.bounding == EVICTION and s.budget == limit and s.trade_off is not None)
    strict = [found.settings[place] for place in both if found.evictions.value[place] == 0]
    if not strict:
        raise NoRows("a lambda that never reaches the limit")
    return strict[0]


def _place(found: Bounded, setting: Setting) -> int:
    try:
        return found.place(setting)
    except KeyError:
        raise NoRows(str(setting)) from None


BOUNDED_QUERIES: tuple[Callable[..., Estimate], ...] = (
    bounded_accuracy,
    bounded_evictions,
    evictions_over_alone,
    unbounded_fall,
)
