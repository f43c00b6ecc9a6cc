"""Held-out loss against cache size of write gates over λ and τ (WG-KV Appendix F, Figure 11), and of such without a
local cache (Appendix G, Figure 12)."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.errors import InputError

EXPERIMENT = "write_gate_validation"  #: rows of :mod:`kvrepro.training.gates.validation`
SETTING = ["lambda", "threshold"]


@dataclass(frozen=True)
class TradeOff:
    """Operating points (λ, τ), rising: ``size`` ``[points]``, the normalised cache size, and ``loss`` ``[points]``, the
    distillation loss with binarised gates, both of the same held-out rows, mean over rows and then over lengths."""

    points: list[tuple[float, float]]
    size: Estimate
    loss: Estimate
    rows: int  #: held-out rows of all lengths

    @property
    def lambdas(self) -> list[float]:
        """The values of λ, rising."""
        return sorted({point[0] for point in self.points})

    @property
    def thresholds(self) -> list[float]:
        """The values of τ, rising."""
        return sorted({point[1] for point in self.points})

    def along(self, threshold: float) -> list[int]:
        """Places of the points with a threshold, by rising λ."""
        return [i for i, point in enumerate(self.points) if point[1] == threshold]

    def of(self, trade_off: float) -> list[int]:
        """Places of the points with a λ, by rising τ."""
        return [i for i, point in enumerate(self.points) if point[0] == trade_off]


def trade_off(rows: pd.DataFrame, local: bool = True) -> TradeOff:
    """The operating points in the validation rows of one model, of gates with a local cache or of those without; the
    same held-out rows are resampled for both. InputError without any."""
    found, blocks = with_settings(rows, local=local), []
    for _, part in found.groupby("task"):
        loss = bootstrap.units(part, "item", SETTING)
        size = bootstrap.units(part.assign(value=part["budget"]), "item", SETTING)
        blocks.append(np.hstack([size.to_numpy(), loss.to_numpy()]))
    both, points = bootstrap.mean(blocks), [tuple(map(float, point)) for point in loss.columns]
    size, loss = both.map(lambda x: x[..., : len(points)]), both.map(lambda x: x[..., len(points) :])
    return TradeOff(points, size, loss, sum(map(len, blocks)))


def with_settings(rows: pd.DataFrame, metric: str = "distillation_loss", local: bool = True) -> pd.DataFrame:
    """Validation rows of a metric with λ, τ and window, which stand in the options, as columns: of gates with a local
    cache, or of those without, whose window is the token itself. InputError without any."""
    found = rows[(rows["experiment"] == EXPERIMENT) & (rows["metric"] == metric)] if len(rows) else rows
    if len(found):
        options = {text: json.loads(text) for text in found["options"].unique()}
        columns = {key: found["options"].map({t: o[key] for t, o in options.items()}) for key in (*SETTING, "window")}
        found = found.assign(**columns)
        found = found[(found["window"] > 1) == local]
    if found.empty:
        without = "" if local else " without a local cache"
        raise InputError(f"there are no validation rows of write gates{without}; run the target write_gates.")
    return found


def lowest_loss(size: np.ndarray, loss: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The frontier: the lowest loss within the cache ``at`` ``[...]`` that the points ``size`` and ``loss`` ``[...,
    points]`` reach, alone or as a mixture of two of them, one for some contexts and the other for the rest."""
    at = at[..., None]
    left, right = np.where(size <= at, loss, np.inf), np.where(size >= at, loss, np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (at - size)[..., :, None] / (size[..., None, :] - size[..., :, None])
        mixed = left[..., :, None] * (1 - share) + right[..., None, :] * share
    return np.minimum(left.min(-1), np.where(np.isfinite(mixed), mixed, np.inf).min((-2, -1)))


def frontiers(a: TradeOff, b: TradeOff) -> tuple[np.ndarray, Estimate, Estimate]:
    """The sizes at which either has a setting and both have a frontier, rising, and the frontiers there. InputError
    when there is none."""
    both = [each.size.value for each in (a, b)]
    low, high = max(x.min() for x in both), min(x.max() for x in both)
    sizes = np.unique([x for x in np.concatenate(both) if low <= x <= high])
    if not len(sizes):
        raise InputError(
            "gates with and without a local cache hold no cache of one size; train them with other lambdas."
        )
    return sizes, *(_frontier(each, sizes) for each in (a, b))


def _frontier(found: TradeOff, sizes: np.ndarray) -> Estimate:
    def at(size: np.ndarray, loss: np.ndarray) -> np.ndarray:
        reached = [lowest_loss(size, loss, np.maximum(x, size.min(-1))) for x in sizes]
        return np.stack(reached, -1)

    pairs = ((found.size.value, found.loss.value), (found.size.draws, found.loss.draws))
    return Estimate(*(at(*pair) for pair in pairs), found.loss.units)
