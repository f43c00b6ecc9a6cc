"""Means over sampled units (items, documents) with 95 % bootstrap intervals, for many series at once.

A unit is resampled as a whole, so that a difference between two series is taken on the same units.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

DRAWS = 2000
ITEM = ["task", "unit", "item"]  #: of rows that :func:`with_units` made
FEW = 10  #: with fewer units a block is not resampled by itself, and an interval proves nothing


@dataclass(frozen=True)
class Estimate:
    """A mean per series and what it becomes when the units are drawn anew."""

    value: np.ndarray  #: [...]
    draws: np.ndarray  #: [DRAWS, ...]
    units: int  #: how many units were resampled together; with fewer than FEW the interval proves nothing

    @property
    def low(self) -> np.ndarray:
        """Lower end of the 95 % interval."""
        return self._percentile(2.5)

    @property
    def high(self) -> np.ndarray:
        """Upper end of the 95 % interval."""
        return self._percentile(97.5)

    def _percentile(self, percent: float) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a series without a value has no interval either
            return np.nanpercentile(self.draws, percent, axis=0)

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Estimate:
        """A function of the last axis (a difference, a minimum), value and draws alike."""
        return Estimate(function(self.value), function(self.draws), self.units)


@dataclass(frozen=True)
class Block:
    """Units whose mean is that over ``parts`` (sub-tasks) of the mean over units, each with its size (questions)."""

    parts: np.ndarray  #: [parts, units, series], NaN where missing
    sizes: np.ndarray  #: [parts, units]

    def __len__(self) -> int:
        return self.parts.shape[1]

    @classmethod
    def of(cls, units: np.ndarray | Block) -> Block:
        """One part of units ``[units, series]`` of one size."""
        return units if isinstance(units, Block) else cls(units[None], np.ones((1, len(units))))

    def weighted(self, weights: np.ndarray) -> np.ndarray:
        """Means under weights of the units, ``[draws, units]`` -> ``[draws, series]``."""
        parts = zip(self.parts, self.sizes, strict=True)
        return np.mean([_weighted(weights * size, units) for units, size in parts], axis=0)

    def whole(self) -> np.ndarray:
        """Each unit's mean over its parts: ``[units, series]``."""
        there = np.isfinite(self.parts)
        with np.errstate(invalid="ignore"):
            return np.where(there, self.parts, 0.0).sum(0) / there.sum(0)


def mean(blocks: Sequence[np.ndarray | Block], seed: int = 0) -> Estimate:
    """Mean over blocks (tasks) of the mean over each block's units: a :class:`Block` each, or ``[units, series]``, NaN
    where missing.

    Units are resampled within their block. Where a block has fewer than FEW units, all blocks' units are resampled
    together, which gives wider intervals than the truth and not ones of zero width.
    """
    blocks = [Block.of(b) for b in blocks]
    value = np.mean([b.weighted(np.ones((1, len(b))))[0] for b in blocks], axis=0)
    if min(len(b) for b in blocks) >= FEW or len(blocks) == 1:
        return Estimate(value, _resampled(blocks, seed), min(len(b) for b in blocks))
    pooled = Block.of(np.concatenate([b.whole() for b in blocks]))
    return Estimate(
        value, _resampled([pooled], seed) + value - pooled.weighted(np.ones((1, len(pooled))))[0], len(pooled)
    )


def over_tasks(items: pd.DataFrame) -> Estimate:
    """Mean over tasks of the mean over a task's items: a row an item, indexed by ``ITEM``, and a column a series,
    without gaps; NaN without a row. Units are resampled within their task, as :func:`mean` says."""
    if items.empty:
        nothing = np.full(items.shape[1], np.nan)
        return Estimate(nothing, np.tile(nothing, (DRAWS, 1)), 0)
    blocks = []
    for _, part in items.groupby(level="task"):
        own = part.groupby(level="unit")
        blocks.append(Block(own.mean().to_numpy(dtype=float)[None], own.size().to_numpy(dtype=float)[None]))
    return mean(blocks)


def median(values: np.ndarray, seed: int = 0) -> Estimate:
    """Median over units, ``[units]``; of an even number the lower one of the two in the middle."""
    rng = np.random.default_rng(seed)
    drawn = values[rng.integers(len(values), size=(DRAWS, len(values)))]
    return Estimate(*(np.quantile(x, 0.5, axis=-1, method="lower") for x in (values, drawn)), len(values))


def _resampled(blocks: Sequence[Block], seed: int) -> np.ndarray:
    """Means over blocks of the means of DRAWS resamples: ``[DRAWS, series]``."""
    drawn = _draws(seed, tuple(len(block) for block in blocks))
    return np.mean([block.weighted(times.astype(float)) for block, times in zip(blocks, drawn, strict=True)], axis=0)


@lru_cache(maxsize=4)
def _draws(seed: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """How often each unit is drawn in DRAWS resamples of blocks of these sizes, ``[DRAWS, units]`` each; remembered,
    since many estimates are over blocks of the same sizes."""
    rng = np.random.default_rng(seed)
    return [rng.multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(np.min_scalar_type(n)) for n in sizes]


def _weighted(weights: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Weighted means over the units that are there: weights ``[draws, units]`` -> ``[draws, series]``."""
    there = np.isfinite(units)
    total = weights @ np.where(there, units, 0.0)
    with np.errstate(invalid="ignore"):
        return total / (weights @ there.astype(float))


def with_units(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of items with the column ``unit``, what is resampled as a whole: several items that repeat a question or a
    context, else each item, as in rows that do not say."""
    return rows.assign(unit=(rows["unit"].fillna(rows["item"]) if "unit" in rows else rows["item"]).astype(int))


def units(rows: pd.DataFrame, unit: str | list[str], series: list[str]) -> pd.DataFrame:
    """One row a unit and one column a series, cells the mean of ``value`` (several questions, several heads)."""
    return rows.pivot_table(index=unit, columns=series, values="value", aggfunc="mean", sort=True, observed=True)
