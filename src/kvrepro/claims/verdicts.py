"""From a claim and our numbers to a verdict.

How a claim is judged. Its query gives one number, or several. A condition (the published value with its tolerance, the
published range or order, the claim's ``direction``) holds when the whole 95 % interval of every number meets it; it
fails when no part of the interval of one of them does; and it is open otherwise, or when fewer than ten units were
sampled.

On a model that the claim is about (one of its ``models``, or any where it names none):

1. reproduced, when the published value, range or order holds, or, for a claim of kind direction, its direction
2. else the direction decides: direction holds, contradicted or undecided
3. without a direction: contradicted when the published condition fails, undecided when it is open

On any other model, such as a lab model, the published number means nothing. The direction alone decides (of an
ordering without one, the order): direction holds, contradicted or undecided, never reproduced; and without a direction
the claim is undecided. Reports give these verdicts with the name of the model.

Rows that do not answer all of a query, and claims that the tier cannot test, give not run here; a claim without a
query, or about a benchmark that the suite does not have, is not built.
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
#: What each verdict says, as reports print it.
MEANING = {
    REPRODUCED: "on a model the paper speaks of, the whole interval agrees with the published value, range or order.",
    DIRECTION: "the whole interval meets the weaker statement that makes sense on this model.",
    CONTRADICTED: "the whole interval is on the other side; on a model the paper does not speak of, this is said of "
    "that model alone.",
    UNDECIDED: "the interval straddles the threshold, fewer than ten items or documents were measured, or the claim "
    "says nothing that could be tested on this model.",
    NOT_RUN: "this tier has no rows that answer it; the command in claims.csv makes them.",
    NOT_BUILT: "no code computes it yet.",
}
VERDICTS = tuple(MEANING)

HOLDS, FAILS, OPEN = "holds", "fails", "open"
Region = tuple[float, float, bool]  # low, high, and whether the ends belong to it


def verdict(claim: Claim, found: Mapping[str, Estimate], model: str) -> str:
    """The verdict on a claim from the numbers of ``model``, by the keys of ``claim.query.calls()``."""
    direction = _all(_direction(claim, key, e) for key, e in found.items()) if claim.direction else None
    main = _published_condition(claim, found, direction)
    if about(claim, model):
        if main == HOLDS:
            return REPRODUCED
        weaker = main if direction is None else direction
    else:
        weaker = main if direction is None and claim.kind == "ordering" else direction
    return {HOLDS: DIRECTION, FAILS: CONTRADICTED, OPEN: UNDECIDED, None: UNDECIDED}[weaker]


def about(claim: Claim, model: str) -> bool:
    """Whether the paper makes the statement of this model."""
    return not claim.models or model in claim.models


def _published_condition(claim: Claim, found: Mapping[str, Estimate], direction: str | None) -> str:
    if claim.kind == "direction":
        return direction
    if claim.kind == "ordering":
        return _ordering(claim, found)
    return _all(state(e, accepted(claim, key)) for key, e in found.items())


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
