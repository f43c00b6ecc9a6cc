"""The goals of the H200 profile, each with what was measured, and the table of all ratios, from profile rows alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from kvrepro.profiling.published import plotted
from kvrepro.profiling.settings import PHASES, PROTOCOLS, Settings
from kvrepro.profiling.summary import (
    ceiling,
    kernel_seconds,
    kernels,
    memory_saving,
    of_whole_model,
    ratios,
    speedup,
    value,
)
from kvrepro.tables.markdown import Table, number

COLUMNS = ["goal_id", "what", "measured", "unit", "goal", "bound", "protocol"]
LONG = 131072  # tokens from which on attention kernels are compared
ACCOUNTINGS = {
    "paper": "weights and cache",
    "peak_decode": "peak of the allocator while decoding",
    "peak_prefill": "peak of the allocator while prefilling",
}
K = 1024


def goals(rows: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """One row a goal with the columns COLUMNS. ``measured`` is empty where the rows do not say.

    A number of the whole model counts only when all layers were timed; ``what`` says so where it was scaled up instead.
    """
    lines = [
        *_kernel_goals(rows, settings),
        *_decode_step(rows, settings),
        *_speedups(rows, settings),
        *_absolute(rows, settings),
        *_memory(rows, settings),
    ]
    return pd.DataFrame(lines, columns=COLUMNS)


def goal_row(
    name: str, what: str, measured: float | None, unit: str, goal: str, bound: str, protocol: str
) -> dict[str, Any]:
    """One row of the table of goals."""
    return dict(zip(COLUMNS, (name, what, measured, unit, goal, bound, protocol), strict=True))


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b is not None else None


def _kernel_goals(rows: pd.DataFrame, settings: Settings) -> Iterator[dict[str, Any]]:
    kept = settings.profile.kept
    lengths = [n for n in settings.profile.kernels["prefill"] if n >= LONG] or settings.profile.kernels["prefill"]
    tokens = lengths[0]
    ours = kernel_seconds(rows, "vertical_slash", tokens, kept)
    flash, cudnn = (kernel_seconds(rows, f"dense_{name}", tokens) for name in ("flash_attention_2", "cudnn"))
    fastest = min((x for x in (flash, cudnn) if x is not None), default=None)
    at = f"vertical-slash attention, {kept:.0%} admitted, {tokens} tokens"
    yield goal_row(
        "vertical_slash_over_fastest_dense",
        f"{at}: time of the fastest dense kernel at hand over its time, planning included",
        _over(fastest, ours),
        "ratio",
        ">=3.6",
        "4.0",
        "strongest_baseline",
    )
    yield goal_row(
        "vertical_slash_over_flash_attention_2",
        f"{at}: time of FlashAttention-2 over its time, planning included",
        _over(flash, ours),
        "ratio",
        ">=5.8",
        "",
        "paper",
    )
    share = _over(kernel_seconds(rows, "vertical_slash_plan", tokens, kept), ours)
    yield goal_row(
        "planning_share",
        f"{at}: planning (gather, bounds) as a share of it",
        None if share is None else 100 * share,
        "%",
        "<=2",
        "",
        "kernel",
    )
    table = kernels(rows)
    ragged = table[table["task"] == "ragged_decode"]
    rate = None
    if len(ragged):
        row = ragged.sort_values("n_tokens").iloc[-1]
        rate = 100 * row["bytes"] / row["seconds"] / ceiling(rows, "streaming_read")
    yield goal_row(
        "ragged_decode_bandwidth",
        f"ragged paged decode attention, {kept:.0%} of {settings.profile.kernels['decode'] // K}K, batch 1: bytes of "
        "the kept cache over its time, of the streaming-read rate of the same run",
        rate,
        "%",
        ">=85",
        "100",
        "kernel",
    )


def _decode_step(rows: pd.DataFrame, settings: Settings) -> Iterator[dict[str, Any]]:
    model, tokens = settings.profile.models[0], settings.profile.tokens[min(3, len(settings.profile.tokens) - 1)]
    what = f"decode step of {model} at {tokens // K}K over (weights + kept cache) / read rate, promotion included"
    for protocol in reversed(PROTOCOLS):
        key = (rows, model, "decode", tokens, "wg_kv", protocol)
        step = value(*key, "seconds", "total")
        sizes = [value(*key, "bytes", part) for part in ("weights", "cache")]
        ratio = None
        if step is not None and all(sizes):
            ratio = step.value / (sum(x.value for x in sizes) / ceiling(rows, "streaming_read"))
        yield goal_row("decode_step_over_bytes", what + _scaled(step), ratio, "ratio", "<=1.25", "1.0", protocol)


def _scaled(found: Any) -> str:
    return "" if found is None or found.whole else " (scaled up from some of the layers)"


def _speedups(rows: pd.DataFrame, settings: Settings) -> Iterator[dict[str, Any]]:
    for model, said in settings.published.items():
        for phase in PHASES:
            ends = list(zip(said["tokens"], sorted(said[phase]), strict=True))
            for tokens, least in ends:
                for protocol in PROTOCOLS:
                    found = speedup(rows, model, phase, tokens, protocol)
                    yield goal_row(
                        f"{phase}_speedup_{_short(model)}_{tokens // K}k",
                        f"{model}, {phase} at {tokens // K}K, end to end: full attention over WG-KV{_scaled(found)}",
                        None if found is None else found.value,
                        "ratio",
                        f">={least:g}",
                        "",
                        protocol,
                    )


def _absolute(rows: pd.DataFrame, settings: Settings) -> Iterator[dict[str, Any]]:
    """Our WG-KV times over the plotted ones, at the length where we come out worst."""
    data = plotted(settings)
    data = data[(data["method"] == "wg_kv") & (data["metric"] == "seconds")]
    totals = data.groupby(["model", "task", "n_tokens"])["value"].sum(min_count=1)
    ours = of_whole_model(rows)
    ours = ours[(ours["method"] == "wg_kv") & (ours["metric"] == "seconds") & (ours["component"] == "total")]
    for model in settings.published:
        for phase in PHASES:
            for protocol in PROTOCOLS:
                mine = ours[(ours["model"] == model) & (ours["task"] == phase) & (ours["protocol"] == protocol)]
                found = {
                    row.n_tokens: row.value / totals[model, phase, row.n_tokens]
                    for row in mine.itertuples()
                    if (model, phase, row.n_tokens) in totals.index
                }
                worst = max(found, key=lambda n: found[n], default=None)
                scaled = {row.n_tokens for row in mine.itertuples() if row.n_tokens in found and not row.whole}
                of = f"the largest of {_lengths(found)}" if found else "not run"
                of += f" ({_lengths(scaled)} scaled up from some of the layers)" if scaled else ""
                yield goal_row(
                    f"absolute_{phase}_{_short(model)}",
                    f"{model}, {phase} time of WG-KV over the published one, {of}",
                    None if worst is None else found[worst],
                    "ratio",
                    "<1",
                    "",
                    protocol,
                )


def _lengths(tokens: Iterable[int]) -> str:
    return ", ".join(f"{n // K}K" for n in sorted(tokens))


def _memory(rows: pd.DataFrame, settings: Settings) -> Iterator[dict[str, Any]]:
    for model, said in settings.published.items():
        for tokens, least in zip(said["tokens"], sorted(said["memory"]), strict=True):
            for accounting, words in ACCOUNTINGS.items():
                for protocol in PROTOCOLS:
                    found = memory_saving(rows, model, tokens, accounting, protocol)
                    yield goal_row(
                        f"memory_{accounting}_{_short(model)}_{tokens // K}k",
                        f"{model}, {tokens // K}K: memory saved, {words}; published: {least:g} %, rounded",
                        None if found is None else found.value,
                        "%",
                        f">={least - 0.5:g}",
                        "",
                        protocol,
                    )


def _short(model: str) -> str:
    return model.split("-")[0].lower()


def met(measured: float, goal: str) -> bool | None:
    """Whether a number meets a goal such as ``>=3.6``; None when there is no number."""
    if measured is None or math.isnan(measured):
        return None
    sign = goal.rstrip("0123456789.")
    bound = float(goal[len(sign) :])
    return {">=": measured >= bound, "<=": measured <= bound, "<": measured < bound}[sign]


def ratio_table(rows: pd.DataFrame, settings: Settings) -> tuple[pd.DataFrame, str]:
    """Full attention over WG-KV of every time and size, as a frame and as Markdown; ``layers`` says what was timed."""
    frame = ratios(rows)
    header = ["model, phase, length", "protocol", "component", "full", "WG-KV", "full / WG-KV", "layers timed"]
    scale = {"seconds": (1e3, "ms"), "bytes": (1 / 2**30, "GiB")}
    lines = []
    for row in frame.itertuples():
        factor, unit = scale[row.metric]
        numbers = [f"{number(x * factor, 2)} {unit}" if np.isfinite(x) else "–" for x in (row.full, row.wg_kv)]
        place = f"{row.model}, {row.phase}, {row.n_tokens // K}K"
        lines.append([place, row.protocol, row.component, *numbers, number(row.ratio, 2), row.layers])
    note = (
        "Random weights, random admission of exact sparsity. Times of fewer layers than the model has are scaled up to "
        "all of them here; the rows hold what was measured. A dash: out of memory, not run, or no such part."
    )
    return frame, str(Table("Latency and memory, full attention and WG-KV", header, lines, note))
