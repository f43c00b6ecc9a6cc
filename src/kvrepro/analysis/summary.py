"""Predictors compared over documents, with intervals, from the rows of :mod:`kvrepro.analysis.predictors`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.names import METRICS
from kvrepro.errors import InputError

DOCUMENT = ["task", "item"]


def with_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their attention layer, which stands in the options, as a column."""
    options = rows["options"].drop_duplicates()
    return rows.assign(layer=rows["options"].map({o: json.loads(o).get("layer") for o in options}))


def predictor_rows_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the experiment ``predictors`` with their layer; InputError when there are none."""
    found = rows[rows["experiment"] == "predictors"] if len(rows) else rows
    if found.empty:
        raise InputError("there are no predictor rows; run the target estimators.")
    return with_layer(found)


def scale(metric: str) -> float:
    """What a metric is multiplied with when it is shown: overlaps and coverages are shown in percent."""
    return 1.0 if metric == "spearman" else 100.0


def estimate(rows: pd.DataFrame, metric: str, methods: Sequence[str]) -> Estimate:
    """A metric of several predictors as shown, mean over layers and documents; the last axis runs over ``methods``.

    Documents are resampled. A predictor without rows is NaN.
    """
    part = rows[(rows["metric"] == metric) & rows["method"].isin(methods)]
    wide = bootstrap.units(part, DOCUMENT, "method").reindex(columns=list(methods))
    return bootstrap.mean([wide.to_numpy(dtype=float)]).map(lambda x: x * scale(metric))


def per_layer(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Columns method, layer, value, low, high of a metric as shown."""
    part = rows[rows["metric"] == metric]
    wide = bootstrap.units(part, DOCUMENT, ["method", "layer"])
    found = bootstrap.mean([wide.to_numpy(dtype=float)]).map(lambda x: x * scale(metric))
    return wide.columns.to_frame(index=False).assign(value=found.value, low=found.low, high=found.high)


def table(rows: pd.DataFrame, methods: Sequence[str], metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """One row a predictor, three columns a metric: the mean and the ends of its interval."""
    columns: dict[str, np.ndarray] = {}
    for metric in metrics:
        found = estimate(rows, metric, methods)
        columns |= {metric: found.value, f"{metric} low": found.low, f"{metric} high": found.high}
    return pd.DataFrame(columns, index=pd.Index(methods, name="predictor")).reset_index()


def documents(rows: pd.DataFrame) -> int:
    """How many documents the rows are of."""
    return len(rows[DOCUMENT].drop_duplicates())
