"""Accuracy against the cache that an admission method held: the axes of WG-KV Figures 7 and 14."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kvrepro.analysis.accuracy import SERIES, Accuracy, accuracy
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.errors import InputError
from kvrepro.results import DENSE, valid

THRESHOLD = 0.1  #: τ of the paper's curves, which go over λ (§5.2)
SLACK = 0.005  #: a size this close to the end of a curve is on it; a head's entries are a whole number
ITEM = ["task", "item"]


@dataclass(frozen=True)
class Curve:
    """A method's settings by the cache they held: ``sizes`` ``[points]``, entries over those of the full cache, mean
    over items and then tasks, rising; ``accuracy`` ``[points]`` in percent."""

    method: str
    sizes: np.ndarray
    accuracy: Estimate

    def at(self, size: float) -> Estimate:
        """Accuracy at a cache size, interpolated between the neighbouring settings; InputError beyond them."""
        low, high = float(self.sizes[0]), float(self.sizes[-1])
        if not low - SLACK <= size <= high + SLACK:
            raise InputError(
                f"{self.method} held {low:.3g} to {high:.3g} of the cache and has no accuracy at {size:g}; run "
                "settings on both sides."
            )
        place = np.interp(size, self.sizes, np.arange(len(self.sizes)))
        left, share = int(place), place % 1
        right = min(left + 1, len(self.sizes) - 1)
        return self.accuracy.map(lambda x: (1 - share) * x[..., left] + share * x[..., right])


@dataclass(frozen=True)
class Curves:
    """The curves of admission methods by name, in the order of the config, and the full cache's accuracy."""

    result: Accuracy
    dense: Estimate
    curves: dict[str, Curve]


def curves(rows: pd.DataFrame, tasks: Sequence[str] | None = None, threshold: float = THRESHOLD) -> Curves:
    """Curves of the methods that are an admission and nothing else, over ``tasks`` (all that the rows hold when None)
    of one model; of write gates those with ``threshold``. All are averaged over the same items
    (:func:`kvrepro.analysis.accuracy.accuracy`). InputError when the rows hold no such method.
    """
    scores = rows[rows["metric"] == "score"] if len(rows) else rows
    options = {text: _alone(text, threshold) for text in scores["options"].unique()} if len(scores) else {}
    dense = scores["method"] == DENSE if len(scores) else []
    admitted = scores[scores["options"].map(options).astype(bool) & ~dense] if len(scores) else scores
    if admitted.empty:
        raise InputError("there are no accuracy rows of an admission method; run the target accuracy.")
    both = with_sizes(pd.concat([scores[dense], admitted]))
    # gates take no kept fraction; their series are told apart by their names, and go by what they held
    both["budget"] = both["budget"].fillna(both.groupby("method")["size"].transform("mean"))
    result = accuracy(both, tasks)
    held = valid(both)[valid(both)["task"].isin(result.tasks)]
    sizes = held.groupby([*SERIES, "task"])["size"].mean().groupby(SERIES).mean()
    found = {}
    for family, part in admitted["method"].groupby(admitted["method"].str.split("@").str[0], sort=False):
        keys = [key for key in sizes.index if key[0] in set(part)]
        keys.sort(key=lambda key: sizes[key])
        estimates = [result[key] for key in keys]
        draws = np.stack([e.draws for e in estimates], -1)
        line = Estimate(np.array([e.value for e in estimates]), draws, result.estimate.units)
        found[family] = Curve(family, np.array([sizes[key] for key in keys]), line)
    return Curves(result, result[DENSE, 1.0], found)


def smallest_common(a: Curve, b: Curve) -> float:
    """The smallest cache size that both curves reach down to."""
    return float(max(curve.sizes[0] for curve in (a, b)))


def smallest_lead(a: Curve, b: Curve, below: float) -> Estimate:
    """The smallest lead of a over b in points over the cache sizes below a bound that both cover; InputError when they
    cover none.

    Both curves are straight between their settings, so the smallest lead is at a setting of either or at an end.
    """
    low, high = smallest_common(a, b), min(below, a.sizes[-1], b.sizes[-1])
    if low >= high:
        raise InputError(f"{a.method} and {b.method} held no caches of one size below {below:g}; run smaller ones.")
    places = {size for curve in (a, b) for size in curve.sizes if low <= size <= high} | {low, high}
    ours, theirs = ([curve.at(size) for size in sorted(places)] for curve in (a, b))
    leads = [(x.value - y.value, x.draws - y.draws) for x, y in zip(ours, theirs, strict=True)]
    value, draws = (np.min(each, axis=0) for each in zip(*leads, strict=True))
    return Estimate(value, draws, ours[0].units)


def _alone(options: str, threshold: float) -> bool:
    """Whether options are those of an admission without a selection or an eviction, at the threshold if it has one."""
    parts: dict[str, Any] = json.loads(options)
    return set(parts) == {"admission"} and parts["admission"].get("threshold", threshold) == threshold


def with_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the column ``size``: entries held after the context over those of the full cache."""
    full = rows[rows["method"] == DENSE].drop_duplicates(ITEM).set_index(ITEM)["kept_entries"]
    of_item = full.reindex(pd.MultiIndex.from_frame(rows[ITEM])).to_numpy()
    return rows.assign(size=rows["kept_entries"].to_numpy() / of_item)
