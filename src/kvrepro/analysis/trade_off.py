"""Held-out loss against cache size of write gates over λ and τ: WG-KV Appendix F, Figure 11."""

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


def trade_off(rows: pd.DataFrame) -> TradeOff:
    """The operating points in the validation rows of one model; held-out rows are resampled. InputError without any."""
    found, blocks = with_settings(rows), []
    for _, part in found.groupby("task"):
        loss = bootstrap.units(part, "item", SETTING)
        size = bootstrap.units(part.assign(value=part["budget"]), "item", SETTING)
        blocks.append(np.hstack([size.to_numpy(), loss.to_numpy()]))
    both, points = bootstrap.mean(blocks), [tuple(map(float, point)) for point in loss.columns]
    size, loss = both.map(lambda x: x[..., : len(points)]), both.map(lambda x: x[..., len(points) :])
    return TradeOff(points, size, loss, sum(map(len, blocks)))


def with_settings(rows: pd.DataFrame, metric: str = "distillation_loss") -> pd.DataFrame:
    """Validation rows of a metric with λ and τ, which stand in the options, as columns. InputError without any."""
    found = rows[(rows["experiment"] == EXPERIMENT) & (rows["metric"] == metric)] if len(rows) else rows
    if found.empty:
        raise InputError("there are no validation rows of write gates; run the target write_gates.")
    options = {text: json.loads(text) for text in found["options"].unique()}
    return found.assign(**{key: found["options"].map({t: o[key] for t, o in options.items()}) for key in SETTING})


def lowest_loss(size: np.ndarray, loss: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The frontier: the lowest loss within the cache ``at`` ``[...]`` that the points ``size`` and ``loss`` ``[...,
    points]`` reach, alone or as a mixture of two of them, one for some contexts and the other for the rest."""
    at = at[..., None]
    left, right = np.where(size <= at, loss, np.inf), np.where(size >= at, loss, np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (at - size)[..., :, None] / (size[..., None, :] - size[..., :, None])
        mixed = left[..., :, None] * (1 - share) + right[..., None, :] * share
    return np.minimum(left.min(-1), np.where(np.isfinite(mixed), mixed, np.inf).min((-2, -1)))
