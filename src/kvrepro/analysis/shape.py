"""What follows from a model's shape alone: sizes of its memories and of its estimators (GateSight §1, §2, §4.1)."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pandas as pd

from kvrepro.analysis.tidy import tidy
from kvrepro.estimators.features import widths
from kvrepro.methods.allocation import PYRAMID_LEAST, pyramid
from kvrepro.models.geometry import Geometry

CACHE_BYTES = 2  #: bfloat16 (§1)
STATE_BYTES = 4  #: float32 (§1)
#: Counts that follow from others, which a shape that was written down after the paper answers, too.
DERIVED = ("networks", "inputs", "inputs_first_layer", "parameters", "cache_per_token", "state")


def parameters(geometry: Geometry, window: int, hidden: int) -> int:
    """Weights and biases of all networks, each F -> ``hidden`` -> 1 (Appendix G)."""
    networks = sum(f * hidden + hidden + hidden + 1 for f in widths(geometry, window))
    return geometry.kv_heads * networks


def shape(geometry: Geometry, window: int, hidden: int) -> dict[str, float]:
    """Counts by name; ``lists`` are those of kept entries of a layer, ``block`` is what these come in multiples of,
    ``index_head_dim`` that of a sparse attention's index and ``index_budget`` the entries that it selects, 0 where
    there is none; ``cache_per_token`` and ``state`` are bytes of one sequence (states of the
    GDN heads alone, without those of their short convolutions), ``pyramid_least`` the fewest entries of a layer in the
    PyramidKV schedules of flat budgets of 4 to 99 entries (Appendix F)."""
    g, inputs = geometry, widths(geometry, window)
    return {
        "layers": g.layers,
        "gdn_layers": len(g.gdn_layers),
        "attention_layers": len(g.attention_layers),
        "query_heads": g.query_heads,
        "kv_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "gdn_heads": g.gdn_heads,
        "gdn_head_dim": g.gdn_head_dim,
        "lists": g.lists,
        "block": g.block,
        "index_head_dim": g.index.head_dim if g.index else 0,
        "index_budget": g.index.budget if g.index else 0,
        "networks": g.cache_rows,
        "inputs": max(inputs),
        "inputs_first_layer": inputs[0],
        "parameters": parameters(g, window, hidden),
        "pyramid_least": min(min(pyramid(k, len(g.attention_layers), 2 * k)) for k in range(PYRAMID_LEAST, 100)),
        "cache_per_token": CACHE_BYTES * 2 * g.cache_rows * g.head_dim,
        "state": STATE_BYTES * len(g.gdn_layers) * g.gdn_heads * g.gdn_head_dim**2,
    }


def shape_rows(geometry: Geometry, window: int, hidden: int, model: str, tier: str) -> pd.DataFrame:
    """Tidy rows of :func:`shape`, experiment ``shape``, one metric a count."""
    found = [("shape", "{}", "model", 0, name, float(x)) for name, x in shape(geometry, window, hidden).items()]
    return tidy(found, "shape", model, tier, seed=0)


def derived_rows(
    geometry: Geometry, window: int, hidden: int, windows: Iterable[int], model: str, tier: str
) -> pd.DataFrame:
    """Of :func:`shape_rows` those of DERIVED, and rows of the experiment ``windows`` with the inputs and parameters of
    the networks with each of ``windows``, for a shape that is known without the model."""
    own = shape_rows(geometry, window, hidden, model, tier)
    found = [
        ("mlp", json.dumps({"window": each}), "all", 0, name, value)
        for each in windows
        for name, value in window_counts(geometry, each, hidden).items()
    ]
    rest = tidy(found, "windows", model, tier, seed=0)
    return pd.concat([own[own["metric"].isin(DERIVED)], rest], ignore_index=True)


def window_counts(geometry: Geometry, window: int, hidden: int) -> dict[str, float]:
    """Inputs of the widest network with a window, and parameters of all."""
    return {
        "inputs": float(max(widths(geometry, window))),
        "parameters": float(parameters(geometry, window, hidden)),
    }
