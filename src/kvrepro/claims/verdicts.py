"""From a claim and our numbers to a verdict.

A condition holds when the whole 95 % interval meets it, fails when no part of the interval does, and is open in
between, or when fewer than ten units were sampled.

* reproduced: value, range or ordering holds on any model, or a direction holds on a model the claim is about
* direction holds: not that, but the weaker direction holds; also a direction that holds on another model
* contradicted: the direction fails; or there is none and the claim fails on a model it is about
* undecided: the interval straddles the threshold, so the rows say neither
* not run here: no rows in this tier; or a claim without a direction that fails on another model, which says nothing
* not built: no query computes it yet
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from kvrepro.analysis.bootstrap import FEW, Estimate
from kvrepro.claims.ledger import Claim

REPRODUCED, DIRECTION, CONTRADICTED = "reproduced", "direction holds", "contradicted"
UNDECIDED, NOT_RUN, NOT_BUILT = "undecided", "not run here", "not built"
VERDICTS = (REPRODUCED, DIRECTION, CONTRADICTED, UNDECIDED, NOT_RUN, NOT_BUILT)

HOLDS, FAILS, OPEN = "holds", "fails", "open"
Region = tuple[float, float, bool]  # low, high, and whether the ends belong to it


def verdict(claim: Claim, found: Mapping[str, Estimate], model: str) -> str:
    """The verdict on a claim from the numbers of ``model``, by the keys of ``claim.query.calls()``."""
    about = not claim.models or model in claim.models
    direction = _all(_direction(claim, key, e) for key, e in found.items()) if claim.direction else None
    if claim.kind == "direction":
        return {HOLDS: REPRODUCED if about else DIRECTION, FAILS: CONTRADICTED, OPEN: UNDECIDED}[direction]
    if claim.kind == "ordering":
        main = _ordering(claim, found)
    else:
        main = _all(state(e, accepted(claim, key)) for key, e in found.items())
    if main == HOLDS:
        return REPRODUCED
    if direction is not None:
        return {HOLDS: DIRECTION, FAILS: CONTRADICTED, OPEN: UNDECIDED}[direction]
    if main == OPEN:
        return UNDECIDED
    return CONTRADICTED if about else NOT_RUN


def accepted(claim: Claim, key: str) -> Region:
    """Numbers that reproduce a value or a range, tolerance included."""
    if claim.kind == "range":
        low, high = claim.published.get("low", -math.inf), claim.published.get("high", math.inf)
    else:
        low = high = published(claim, key)
    margin = claim.tolerance.margin
    return (
        low - margin(low) if math.isfinite(low) else low,
        high + margin(high) if math.isfinite(high) else high,
        True,
    )


def published(claim: Claim, key: str) -> float | None:
    """The published number of one call of the query."""
    if isinstance(claim.published, Mapping) and claim.kind != "range":
        return claim.published[key]
    return claim.published if isinstance(claim.published, int | float) else None


def _direction(claim: Claim, key: str, estimate: Estimate) -> str:
    states = []
    for name, bound in claim.direction.items():
        if name.endswith("_published"):
            bound *= published(claim, key)
        below = name in ("less_than", "at_most", "at_most_published")
        region = (-math.inf, bound, name != "less_than") if below else (bound, math.inf, name != "greater_than")
        states.append(state(estimate, region))
    return _all(states)


def state(estimate: Estimate, region: Region) -> str:
    """Whether an interval lies in a region, outside of it, or across its border."""
    low, high, closed = region
    if estimate.units < FEW:
        return OPEN
    least, most = float(estimate.low), float(estimate.high)
    slack = 1e-9 * max(1.0, abs(least), abs(most))  # a mean of decimals may miss a bound by a rounding error
    if closed:
        inside, outside = least >= low - slack and most <= high + slack, most < low - slack or least > high + slack
    else:
        inside, outside = least > low + slack and most < high - slack, most <= low or least >= high
    return HOLDS if inside else FAILS if outside else OPEN


def _ordering(claim: Claim, found: Mapping[str, Estimate]) -> str:
    """Whether each number is above the next in the published order; equal published numbers may stand either way."""
    if isinstance(claim.published, Mapping):
        names = sorted(claim.published, key=lambda k: -claim.published[k])
        pairs = [(a, b) for a, b in pairwise(names) if claim.published[a] > claim.published[b]]
    else:
        pairs = list(pairwise(claim.published))
    gaps = [
        Estimate(
            np.asarray(found[a].value - found[b].value),
            found[a].draws - found[b].draws,
            min(found[a].units, found[b].units),
        )
        for a, b in pairs
    ]
    return _all(state(gap, (0.0, math.inf, False)) for gap in gaps)


def _all(states) -> str:
    states = list(states)
    return FAILS if FAILS in states else OPEN if OPEN in states else HOLDS
