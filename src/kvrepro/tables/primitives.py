"""The primitives of KV cache management (WG-KV §2.2, Table 1), with what each of them stores and reads as measured."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import ITEM, Estimate
from kvrepro.analysis.cache_sizes import with_sizes
from kvrepro.analysis.patterns import ADMISSION, BOTH, EVICTION, FULL, GROWTH, PRIMITIVES, growth, of
from kvrepro.figures.style import look, model_title
from kvrepro.results import valid
from kvrepro.tables.markdown import Table, interval

SELECTION = "quest"
#: What each is, when it acts, and what it decides.
ACTS = {
    FULL: ("none", "never", "nothing: every entry is stored and read"),
    ADMISSION: ("admission", "before the write", "whether an entry is stored"),
    SELECTION: ("selection", "at every read", "which of the stored entries a token reads"),
    EVICTION: ("eviction", "after the write", "which of the stored entries are given up"),
    BOTH: ("admission and eviction", "before and after the write", "both"),
}
SAID, MEASURED = ("primitive", "method", "acts", "decides"), ("stored", "read")


def table_1(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Percent of the entries of a full cache that are stored and that a token reads, by primitive: a frame of SAID and
    MEASURED, the latter with low and high, and Markdown.

    Reads the experiment cache_growth of one model and, of a selection, which acts where single tokens decode, accuracy
    rows on one benchmark.
    """
    settings, found = of(rows, GROWTH), {}
    for place, name in enumerate(PRIMITIVES):
        found[name] = [
            growth(rows, metric).map(lambda x, place=place: 100 * x[..., place] / x[..., 0])
            for metric in ("entries", "attended")
        ]
    if selected := _selection(rows):
        found[SELECTION] = selected
    frame = pd.DataFrame([_line(name, found[name]) for name in ACTS if name in found])
    limit = settings.loc[settings["method"] == EVICTION, "bounding"].iloc[0]["budget"]
    documents = settings["task"].nunique()
    text = (
        f"Percent of the entries of the full cache, with 95 % bootstrap intervals: stored after {documents} documents, "
        f"and read, mean over their tokens. {look(EVICTION).label}: within {limit} entries per KV head. "
        f"{look(SELECTION).label}: after the contexts of the benchmark, mean over its tasks, with its smallest "
        "budget; it reads everything in the prefill."
    )
    cells = [[*(row[key] for key in SAID), *(_cell(row, key) for key in MEASURED)] for _, row in frame.iterrows()]
    title = f"Primitives of KV cache management, {model_title(rows['model'].iloc[0], lab)}"
    return frame, str(Table(title, [*SAID, *MEASURED], cells, text))


def _line(name: str, measured: list[Estimate]) -> dict[str, str | float]:
    kind, acts, decides = ACTS[name]
    line: dict[str, str | float] = dict(zip(SAID, (kind, look(name).label, acts, decides), strict=True))
    for key, estimate in zip(MEASURED, measured, strict=True):
        line |= {key: float(estimate.value), f"{key}_low": float(estimate.low), f"{key}_high": float(estimate.high)}
    return line


def _cell(row: pd.Series, key: str) -> str:
    return interval(row[key], row[f"{key}_low"], row[f"{key}_high"])


def _selection(rows: pd.DataFrame) -> list[Estimate]:
    """Percent stored and read of the selection alone with its smallest budget, means over contexts and then tasks; none
    without."""
    scores = valid(rows[rows["metric"] == "score"])
    own = scores[scores["method"].str.split("@").str[0] == SELECTION]
    if own.empty:
        return []
    budgets = own["options"].map(lambda text: json.loads(text)["selection"]["budget"])
    own = with_sizes(scores).loc[own.index[budgets == budgets.min()]]
    own = bootstrap.with_units(own).assign(read=np.minimum(budgets.min() / own["n_tokens"].astype(float), 1.0))
    both = bootstrap.over_tasks(100 * own.groupby(ITEM)[["size", "read"]].mean())
    return [both.map(lambda x, i=i: x[..., i]) for i in range(2)]
