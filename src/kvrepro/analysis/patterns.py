"""What the rows on attention in code, on the cache of every head and on growing caches say (WG-KV §2.2 and §2.3,
Appendix H)."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.errors import InputError

UTILITY, TRACE, SIZES, GROWTH = "token_utility", "token_trace", "head_sizes", "cache_growth"  #: experiments
IDENTITIES = "gate_identities"  #: and what holds by definition
FULL, ADMISSION, EVICTION, BOTH = PRIMITIVES = ("full", "wg_kv", "snapkv", "wg_kv+snapkv")  #: that caches grow under


@dataclass(frozen=True)
class Trace:
    """Attention ``[points]`` of a query head to a token by the number of the query, each a mean over ``width`` of
    them."""

    layer: int
    head: int
    token: int
    window: int
    width: int
    queries: np.ndarray
    attention: np.ndarray


def of(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Rows of one of these experiments, with the options as columns; InputError without any."""
    found = rows[rows["experiment"] == experiment] if len(rows) else rows
    if found.empty:
        raise InputError("there are no rows on patterns of attention and admission; run the target patterns.")
    options = {text: json.loads(text) for text in found["options"].unique()}
    said = pd.DataFrame([options[text] for text in found["options"]], index=found.index)
    return found.join(said)


def traces(rows: pd.DataFrame) -> list[Trace]:
    """The traces of the example, in their order: two heads, two tokens each."""
    keys = ["layer", "head", "token", "window", "queries"]
    parts = of(rows, TRACE).groupby(keys, sort=False)
    return [Trace(*key, part["item"].to_numpy(), part["value"].to_numpy()) for key, part in parts]


def per_document(rows: pd.DataFrame, metric: str) -> Estimate:
    """A metric of the rows on token utility, mean over query heads and documents, which are resampled."""
    found = of(rows, UTILITY)
    return bootstrap.mean([bootstrap.units(found, "item", ["metric"])[[metric]].to_numpy()]).map(lambda x: x[..., 0])


def maps(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Normalised cache sizes ``[contexts, layers, kv_heads]`` by the kind of context, in the order of the rows."""
    found = {}
    for kind, part in of(rows, SIZES).groupby("task", sort=False):
        wide = bootstrap.units(part, "item", ["layer", "head"])
        found[kind] = wide.to_numpy().reshape(len(wide), part["layer"].nunique(), part["head"].nunique())
    return found


def sizes(rows: pd.DataFrame) -> dict[str, Estimate]:
    """The same ``[layers, kv_heads]``, mean over contexts, which are resampled."""
    found = {}
    for kind, each in maps(rows).items():
        flat = bootstrap.mean([each.reshape(len(each), -1)])
        found[kind] = flat.map(lambda x, shape=each.shape[1:]: x.reshape(*x.shape[:-1], *shape))
    return found


def variation(maps: np.ndarray) -> np.ndarray:
    """Coefficient of variation over layers and heads, of ``[..., layers, heads]``."""
    flat = maps.reshape(*maps.shape[:-2], -1)
    return flat.std(-1) / flat.mean(-1)


def growth(rows: pd.DataFrame, metric: str) -> Estimate:
    """A metric of growing caches ``[PRIMITIVES]``, mean over documents, which are resampled: ``attended``,
    ``evictions``, ``first_eviction``, or ``entries``, those held at the end."""
    found = of(rows, GROWTH)
    part = found[found["metric"] == metric]
    last = part.sort_values("item", kind="stable").drop_duplicates(["task", "method"], keep="last")
    return bootstrap.mean([bootstrap.units(last, "task", ["method"])[list(PRIMITIVES)].to_numpy()])


def curves(rows: pd.DataFrame) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Tokens and entries of the first document by primitive."""
    found = of(rows, GROWTH)
    first = found[(found["metric"] == "entries") & (found["task"] == found["task"].iloc[0])]
    parts = {name: first[first["method"] == name] for name in PRIMITIVES}
    return {name: (part["item"].to_numpy(), part["value"].to_numpy()) for name, part in parts.items()}
