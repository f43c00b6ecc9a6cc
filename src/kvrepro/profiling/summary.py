"""What profile rows say: values of whole models, ratios, memory savings and shares of ceilings. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

END_TO_END = "profile_end_to_end"
KERNELS = "profile_kernels"
SERIES = ["model", "task", "n_tokens", "method", "protocol"]


@dataclass(frozen=True)
class Value:
    """A number of the whole model. ``whole`` is False when it was scaled up from some of its layers."""

    value: float
    whole: bool
    note: str  # how it was timed, or why it is NaN


def of_whole_model(rows: pd.DataFrame, experiment: str = END_TO_END) -> pd.DataFrame:
    """Rows of an experiment with ``value`` for all layers and ``whole``, False where it was scaled from a part of them.

    Bytes are always those of the whole model.
    """
    found = rows[rows["experiment"] == experiment].copy()
    found["whole"] = (found["layers_timed"] == found["layers"]) | (found["metric"] == "bytes")
    found["value"] *= np.where(found["whole"], 1.0, found["layers"] / found["layers_timed"])
    return found


def value(
    rows: pd.DataFrame, model: str, phase: str, tokens: int, method: str, protocol: str, metric: str, component: str
) -> Value | None:
    """One number of the end-to-end profile, None when there is no row of it."""
    found = of_whole_model(rows)
    key = {
        "model": model,
        "task": phase,
        "n_tokens": tokens,
        "method": method,
        "protocol": protocol,
        "metric": metric,
        "component": component,
    }
    for column, wanted in key.items():
        found = found[found[column] == wanted]
    if found.empty:
        return None
    row = found.iloc[0]
    whole = "" if row["whole"] else f", scaled from {row['layers_timed']} of {row['layers']} layers"
    return Value(float(row["value"]), bool(row["whole"]), row["reason"] or row["timing"] + whole)


def ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Full attention over WG-KV for every model, phase, length, protocol and component.

    Columns model, phase, n_tokens, protocol, metric, component, full, wg_kv, ratio and layers, which says how many
    layers each side timed.
    """
    found = of_whole_model(rows)
    found["timed"] = found["layers_timed"].astype(str) + " of " + found["layers"].astype(str)
    index = ["model", "task", "n_tokens", "protocol", "metric", "component"]
    wide = found.pivot_table(index=index, columns="method", values="value", aggfunc="first", dropna=False)
    wide = wide.reindex(columns=["full", "wg_kv"])
    timed = found.pivot_table(index=index, columns="method", values="timed", aggfunc="first")
    wide["ratio"] = wide["full"] / wide["wg_kv"]
    wide["layers"] = [
        " / ".join(timed.loc[key].reindex(["full", "wg_kv"]).fillna("–")) if key in timed.index else "–"
        for key in wide.index
    ]
    there = found.set_index(index).index.unique()
    return wide.loc[there].reset_index().rename(columns={"task": "phase"})


def memory_saving(rows: pd.DataFrame, model: str, tokens: int, accounting: str, protocol: str) -> Value | None:
    """Percent of memory that WG-KV saves.

    ``accounting``: ``paper`` (weights and cache, while decoding), ``peak_decode`` or ``peak_prefill`` (most bytes that
    the allocator held at once in that phase).
    """
    phase = "prefill" if accounting == "peak_prefill" else "decode"
    parts = ("weights", "cache") if accounting == "paper" else ("peak",)
    sides = []
    for method in ("full", "wg_kv"):
        found = [value(rows, model, phase, tokens, method, protocol, "bytes", part) for part in parts]
        if any(x is None for x in found):
            return None
        sides.append((sum(x.value for x in found), found[0]))
    (full, a), (ours, b) = sides
    return Value(100 * (1 - ours / full), a.whole and b.whole, "")


def speedup(
    rows: pd.DataFrame, model: str, phase: str, tokens: int, protocol: str, component: str = "total"
) -> Value | None:
    """Seconds of full attention over seconds of WG-KV."""
    full, ours = (
        value(rows, model, phase, tokens, method, protocol, "seconds", component) for method in ("full", "wg_kv")
    )
    if full is None or ours is None:
        return None
    return Value(full.value / ours.value, full.whole and ours.whole, f"full: {full.note}; WG-KV: {ours.note}")


def kernels(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a kernel and length: seconds, bytes, flops, the roofline's bound in seconds with its ``limit``, and the
    share of it that was reached, by the ceilings measured in the same run."""
    found = rows[rows["experiment"] == KERNELS]
    lines = found[found["metric"] != "per_second"]
    index = ["task", "method", "n_tokens", "budget", "batch"]
    wide = lines.pivot_table(index=index, columns="metric", values="value", aggfunc="first")
    wide = wide.reindex(columns=["seconds", "bytes", "flops"]).reset_index()
    flops, read = ceiling(rows, "matrix_product"), ceiling(rows, "streaming_read")
    wide["bound"] = np.maximum(wide["flops"] / flops, wide["bytes"] / read)
    wide["limit"] = np.where(wide["flops"] / flops > wide["bytes"] / read, "arithmetic", "memory")
    wide["share"] = wide["bound"] / wide["seconds"]
    return wide


def kernel_seconds(rows: pd.DataFrame, name: str, tokens: int | None = None, kept: float | None = None) -> float | None:
    """Seconds of a kernel at a length (the longest by default) and kept fraction, None when it was not timed."""
    found = rows[(rows["experiment"] == KERNELS) & (rows["task"] == name) & (rows["metric"] == "seconds")]
    if kept is not None:
        found = found[np.isclose(found["budget"], kept)]
    tokens = found["n_tokens"].max() if tokens is None else tokens
    found = found[found["n_tokens"] == tokens]
    return None if found.empty else float(found["value"].iloc[0])


def ceiling(rows: pd.DataFrame, name: str) -> float:
    """A measured rate per second: ``matrix_product`` (flops) or ``streaming_read`` (bytes); NaN when not measured."""
    found = rows[(rows["experiment"] == KERNELS) & (rows["task"] == name) & (rows["metric"] == "per_second")]
    return float(found["value"].iloc[0]) if len(found) else float("nan")
