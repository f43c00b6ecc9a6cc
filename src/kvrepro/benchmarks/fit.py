"""How much haystack fits a length."""

from __future__ import annotations

from collections.abc import Callable

_STEP = 8  # units added to the smallest size to measure what a unit costs


def largest_fitting(
    size: Callable[[int], int], limit: int, smallest: int, largest: int | None
) -> tuple[int, int] | None:
    """The largest n in [smallest, largest] with ``size(n) <= limit``, and that size; None when even the smallest is
    too large.

    ``size`` is taken to rise with n, roughly in proportion. Small dips at a token boundary are allowed: the answer then
    fits and n + 1 does not. Regula falsi from below, with a bisection every fourth step against slow ends.
    """
    low, low_size = smallest, size(smallest)
    if low_size > limit:
        return None
    first_size = low_size
    high: int | None = None if largest is None else largest + 1  # the first size known (or declared) not to fit
    high_size = 0  # 0 until a size above the limit was measured
    trial, step = low + _STEP, 0
    while high is None or high - low > 1:
        trial = max(trial, low + 1) if high is None else min(max(trial, low + 1), high - 1)
        measured = size(trial)
        step += 1
        if measured <= limit:
            low, low_size = trial, measured
        else:
            high, high_size = trial, measured
        if high_size and step % 4 == 0:
            trial = (low + high) // 2
        elif high_size:
            trial = low + (limit - low_size) * (high - low) // max(1, high_size - low_size)
        else:
            per_unit = (low_size - first_size) / (low - smallest) if low > smallest else 1.0
            trial = low + max(1, int((limit - low_size) / max(per_unit, 0.05)))
    return low, low_size
