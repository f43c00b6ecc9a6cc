"""Queries of the ledger on the scoring cost (GateSight §5.3, Appendix H): each computes one number from the benchmark.

A time of some of the layers answers nothing: its claim is *not run here*. Times have no interval.
"""

from __future__ import annotations

from kvrepro.analysis.bootstrap import Estimate
from kvrepro.claims.evidence import Evidence, NoRows, exact
from kvrepro.profiling.scoring import EXPERIMENT, PREFILL, cost

K = 1024  # tokens


def _seconds(evidence: Evidence, method: str, length: str, variant: str = "") -> float:
    tokens = int(length.removesuffix("K")) * K
    found = cost(evidence.of(EXPERIMENT), evidence.model, method, tokens, variant=variant)
    if found is None or not found.whole:
        raise NoRows(f"time of {' '.join(filter(None, (method, variant)))} at {length}")
    return found.value


def scoring_seconds(evidence: Evidence, method: str, length: str, variant: str = "") -> Estimate:
    """Seconds of scoring a context, or of its prefill; of a method as it is shipped where no variant is named."""
    return exact(_seconds(evidence, method, length, variant))


def scoring_growth(evidence: Evidence, method: str, short: str, long: str) -> Estimate:
    """Time at a long context over that at a short one."""
    return exact(_seconds(evidence, method, long) / _seconds(evidence, method, short))


def scoring_over_prefill(evidence: Evidence, method: str, length: str, unit: str, variant: str = "") -> Estimate:
    """Time of scoring a context over that of its prefill, as a ratio or in percent."""
    ratio = _seconds(evidence, method, length, variant) / _seconds(evidence, PREFILL, length)
    return exact(100 * ratio if unit == "%" else ratio)


SCORING_QUERIES = (scoring_seconds, scoring_growth, scoring_over_prefill)
