"""Numbers with intervals from the rows of the observations, for figures, tables and claims (GateSight §3, Appendices C,
D and F). Documents are resampled, pairs of documents in Figure 1b, and groups of documents in Figures 6 and 7."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import DRAWS, Estimate
from kvrepro.analysis.summary import DOCUMENT, scale
from kvrepro.errors import InputError

HEAD = ["layer", "head"]
CELL = ["layer", "gdn_layer", "head"]
NEARLY = 0.95  #: share of documents in which a head is slow in nearly all of them (Appendix C)


def rows_of(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Rows of an experiment with their options as columns; InputError when there are none."""
    found = rows[rows["experiment"] == experiment] if len(rows) else rows
    if found.empty:
        raise InputError(f"there are no rows of {experiment}; run the target observations.")
    return with_options(found)


def with_options(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with each option as a column, in the place of one of its name, which rows of a profile have."""
    texts = rows["options"].drop_duplicates()
    known = pd.DataFrame([json.loads(t) for t in texts], index=texts)
    return rows.drop(columns=known.columns, errors="ignore").join(known, on="options")


def resampled(values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], seed: int = 0) -> Estimate:
    """A statistic over units, ``[units, ...]`` -> ``[...]``, with what it becomes when the units are drawn anew."""
    rng = np.random.default_rng(seed)
    drawn = (values[rng.integers(len(values), size=len(values))] for _ in range(DRAWS))
    return Estimate(np.asarray(statistic(values)), np.stack([statistic(x) for x in drawn]), len(values))


# Observation 1


def half_lives(rows: pd.DataFrame) -> pd.DataFrame:
    """Half-life of each head: layer, head, median (over all documents), and static where it was read."""
    found = rows_of(rows, "half_lives")
    found = found[found["method"] != "measured"]
    return found.pivot_table(index=HEAD, columns="method", values="value").reset_index()


def document_half_lives(rows: pd.DataFrame) -> pd.DataFrame:
    """Half-life of each head (columns, layer and head) in each analysed document."""
    found = rows_of(rows, "half_lives")
    return bootstrap.units(found[found["method"] == "measured"], DOCUMENT, HEAD)


def median_half_lives(rows: pd.DataFrame) -> Estimate:
    """Median half-life of each head over the analysed documents, ``[heads]``, heads as in :func:`half_lives`."""
    return resampled(document_half_lives(rows).to_numpy(), lambda x: np.median(x, axis=0))


def persistence(rows: pd.DataFrame, threshold: float) -> Estimate:
    """How many heads are slow in nearly all documents, in hardly any, and in between: ``[3]`` (Appendix C)."""
    slow = (document_half_lives(rows).to_numpy() >= threshold).astype(float)
    return bootstrap.mean([slow]).map(
        lambda share: np.stack(
            [
                (share >= NEARLY).sum(-1),
                (share <= 1 - NEARLY + 1e-9).sum(-1),
                ((share < NEARLY) & (share > 1 - NEARLY + 1e-9)).sum(-1),
            ],
            -1,
        )
    )


def stability(rows: pd.DataFrame, signal: str) -> np.ndarray:
    """Spearman correlations between the documents of each pair, by half_life or write."""
    found = rows_of(rows, "order_stability")
    return found.loc[found["method"] == signal, "value"].dropna().to_numpy()


def overlaps(rows: pd.DataFrame) -> dict[float, np.ndarray]:
    """Jaccard index of each document's slow set with that of all documents, by threshold; a document without a slow
    head where the corpus has none either has no index."""
    found = rows_of(rows, "slow_set").dropna(subset="value")
    return {threshold: part["value"].to_numpy() for threshold, part in found.groupby("threshold")}


def per_document(rows: pd.DataFrame, experiment: str, method: str) -> Estimate:
    """Mean of an experiment's values over its options and then over documents."""
    found = rows_of(rows, experiment)
    found = found[found["method"] == method]
    if found["value"].dropna().empty:
        raise InputError(f"there are no rows of {experiment} of {method}; run the target observations.")
    values = found.groupby(DOCUMENT)["value"].mean().to_numpy()
    return bootstrap.mean([values[:, None]]).map(lambda x: x[..., 0])


# Observations 2 and 3


def deciles(rows: pd.DataFrame, end: str) -> Estimate:
    """Percent of the entries of each signal decile, ``[10]`` from the weakest, that are in a utility tenth."""
    found = rows_of(rows, "deciles")
    wide = bootstrap.units(found[found["metric"] == end], DOCUMENT, ["decile"])
    return bootstrap.mean([wide.to_numpy()]).map(lambda x: 100 * x)


def cells(rows: pd.DataFrame, layer: int | None = None) -> tuple[pd.DataFrame, Estimate]:
    """Correlation of every cell of the window before each attention layer, or before one: its layer, gdn_layer, head
    (a row each), and the estimates in the same order."""
    found = rows_of(rows, "cells")
    found = found if layer is None else found[found["layer"] == layer]
    if found.empty:
        raise InputError(f"there are no rows of cells before layer {layer}; run the target observations.")
    wide = bootstrap.units(found, "item", CELL)
    return wide.columns.to_frame(index=False).astype(int), bootstrap.mean([wide.to_numpy()])


def share_above(places: pd.DataFrame, estimate: Estimate, threshold: float) -> Estimate:
    """Percent of the cells of each attention layer whose correlation exceeds ``threshold`` in absolute value."""
    layers = places["layer"].to_numpy()
    return estimate.map(
        lambda x: np.stack([100 * (abs(x[..., layers == k]) > threshold).mean(-1) for k in np.unique(layers)], -1)
    )


def layer_writes(rows: pd.DataFrame) -> tuple[pd.DataFrame, Estimate]:
    """Correlation of every GDN layer's mean effective write with the utility of each attention layer after it: layer,
    gdn_layer, in_window (a row each), and the estimates in the same order."""
    found = rows_of(rows, "layer_writes")
    wide = bootstrap.units(found, "item", ["layer", "gdn_layer", "in_window"])
    return wide.columns.to_frame(index=False), bootstrap.mean([wide.to_numpy()])


def best_layers(places: pd.DataFrame, estimate: Estimate) -> tuple[list[int], Estimate, Estimate]:
    """Attention layers, for each the GDN layer with the highest correlation, and by how much that exceeds the best one
    of the window (0 where it is in the window)."""
    layer, gdn, near = (places[c].to_numpy() for c in ("layer", "gdn_layer", "in_window"))
    names = sorted(set(layer))

    def best(x: np.ndarray) -> np.ndarray:
        return np.stack([gdn[layer == k][x[..., layer == k].argmax(-1)] for k in names], -1)

    def lead(x: np.ndarray) -> np.ndarray:
        inside = near.astype(bool)
        return np.stack([x[..., layer == k].max(-1) - x[..., (layer == k) & inside].max(-1) for k in names], -1)

    return names, estimate.map(best), estimate.map(lead)


# Tables 6 and 7, Appendix D


def lengths(rows: pd.DataFrame, metric: str, methods: Sequence[str], name: str, task: str | None = None) -> Estimate:
    """A metric of several predictors on a set of documents, or on one task of it, as shown; NaN where there is none."""
    found = rows_of(rows, "lengths")
    found = found[(found["set"] == name) & (found["metric"] == metric) & found["method"].isin(methods)]
    found = found if task is None else found[found["task"] == task]
    if found.empty:
        raise InputError(
            f"there are no rows of set {name}{f', task {task}' if task else ''}; run the target observations."
        )
    wide = bootstrap.units(found, DOCUMENT, "method").reindex(columns=list(methods))
    return bootstrap.mean([wide.to_numpy(dtype=float)]).map(lambda x: x * scale(metric))


def sets(rows: pd.DataFrame) -> dict[str, int]:
    """The sets of documents of Table 6 in the order of the rows, with their numbers of documents."""
    found = rows_of(rows, "lengths").drop_duplicates(["set", *DOCUMENT])
    return {str(name): int((found["set"] == name).sum()) for name in found["set"].unique()}


def windows(rows: pd.DataFrame, metric: str) -> tuple[list[int], Estimate]:
    """Windows, narrowest first, and a metric of their networks as shown, on the same documents."""
    found = rows_of(rows, "windows")
    found = found[found["metric"] == metric]
    wide = bootstrap.units(found, DOCUMENT, ["window"])
    factor = scale(metric) if metric == "spearman" or "@" in metric else 1.0
    return [int(w) for w in wide.columns], bootstrap.mean([wide.to_numpy()]).map(lambda x: x * factor)


def closing_costs(rows: pd.DataFrame) -> Estimate:
    """Points of next-token accuracy that closing the heads with the lowest gates costs, and closing random ones (mean
    over draws): ``[2]``."""
    found = rows_of(rows, "closed_heads")
    wide = bootstrap.units(found, DOCUMENT, "method")[["open", "lowest", "random"]]
    return bootstrap.mean([wide.to_numpy()]).map(lambda x: 100 * (x[..., :1] - x[..., 1:]))
