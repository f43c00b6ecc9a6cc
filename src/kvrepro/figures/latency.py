"""Latency and memory of WG-KV: Figures 1, 4, 8 and 15, and the sweeps, from profile rows alone.

Bars are solid where all layers were timed and hatched where the value was scaled up from some of them. The paper's
values are drawn beside ours: the ranges of its text always, its plotted values as outlines where a user has the
authors' data.
"""

from __future__ import annotations

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvrepro.errors import InputError
from kvrepro.figures.style import BLUE, COLUMN, GREEN, GREY, ORANGE, PAGE, RED, caption
from kvrepro.profiling.published import plotted
from kvrepro.profiling.settings import PROTOCOLS, Settings
from kvrepro.profiling.summary import END_TO_END, of_whole_model, speedup

GIB = 2.0**30
K = 1024
NAMES = {"full": "full", "wg_kv": "WG-KV"}
SETUP = "Random weights and inputs, random admission of exact sparsity (Appendix I.3)."
PROTOCOL_NAMES = {"paper": "the paper's protocol", "strongest_baseline": "strongest baseline"}


class Panel(NamedTuple):
    """What a panel stacks: components of a phase in a unit."""

    title: str
    phase: str
    metric: str
    parts: tuple[str, ...]
    scale: float  # our unit to the axis'
    label: str


PANELS = (
    Panel("(a) prefill", "prefill", "seconds", ("non_attention", "attention"), 1.0, "latency (s)"),
    Panel("(b) decode", "decode", "seconds", ("non_attention", "attention"), 1e3, "latency (ms per token)"),
    Panel("(c) memory", "decode", "bytes", ("weights", "cache"), 1 / GIB, "memory (GiB)"),
)
LOOKS = {
    "attention": ("attention", ORANGE),
    "non_attention": ("not attention", BLUE),
    "weights": ("weights", GREY),
    "cache": ("KV cache", GREEN),
}


def figure_1(rows: pd.DataFrame, settings: Settings) -> Figure:
    """Shares of attention in prefill and decode time and memory by component, of full attention on the first model."""
    model = settings.profile.models[0]
    found = _end_to_end(rows, model)
    found = found[(found["method"] == "full") & (found["protocol"] == "paper")]
    published = _of(plotted(settings), model)
    published = published[published["method"] == "full"]
    figure, panels = plt.subplots(1, 3, figsize=(PAGE, 2.1), layout="constrained")
    for axes, panel in zip(panels, PANELS, strict=True):
        share = panel.metric == "seconds"
        if share:
            panel = panel._replace(scale=1.0, label="share of the time")
        lengths = _lengths(found, panel)
        _bars(axes, _stack(found, panel, lengths, share), panel, np.arange(len(lengths)) - 0.2, 0.36, "full")
        _outlines(axes, _stack(published, panel, lengths, share), panel, np.arange(len(lengths)) + 0.2, 0.36)
        _ticks(axes, panel, lengths)
    _legend(figure, PANELS, bool(len(published)))
    figure.suptitle(f"{model}, full attention, {PROTOCOL_NAMES['paper']}", fontsize=7.5)
    caption(figure, _note(found, len(published), stars=False), PAGE)
    return figure


def figure_8(rows: pd.DataFrame, settings: Settings) -> Figure:
    """Latency and memory of full attention and WG-KV on Llama-3.1-8B, one line of panels a protocol."""
    return _end_to_end_figure(rows, settings, settings.profile.models[0])


def figure_15(rows: pd.DataFrame, settings: Settings) -> Figure:
    """Figure 8 on Qwen3-4B."""
    return _end_to_end_figure(rows, settings, settings.profile.models[-1])


def figure_4(rows: pd.DataFrame, settings: Settings) -> Figure:
    """Memory of a ragged cache under three ways to hold it: pages, buffers of the longest head, and reallocation.

    Reads the experiment ``profile_fragmentation``: bytes by component and length.
    """
    found = rows[rows["experiment"] == "profile_fragmentation"]
    if found.empty:
        raise InputError("there are no rows on fragmentation; run the kernels of the profile.")
    lengths = sorted(found["n_tokens"].unique())
    ways = {"entries": GREY, "paged": GREEN, "reallocated": ORANGE, "preallocated": RED}
    figure, axes = plt.subplots(figsize=(COLUMN, 2.1), layout="constrained")
    for place, (way, color) in enumerate(ways.items()):
        line = found[found["component"] == way].set_index("n_tokens")["value"].reindex(lengths) / GIB
        axes.bar(np.arange(len(lengths)) + 0.2 * (place - 1.5), line, 0.18, color=color, label=way)
    axes.set_xticks(np.arange(len(lengths)), [f"{n // K}K" for n in lengths])
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("peak cache memory (GiB)")
    axes.legend()
    axes.set_title(f"{found['model'].iloc[0]}, {found['budget'].iloc[0]:.0%} of the entries kept")
    caption(figure, found["timing"].iloc[0], COLUMN)
    return figure


def sweeps(rows: pd.DataFrame, settings: Settings) -> Figure:
    """Time of WG-KV against sparsity and window, and time per token against batch size."""
    figure, panels = plt.subplots(1, 3, figsize=(PAGE, 2.1), layout="constrained")
    _sweep(panels[0], of_whole_model(rows, "profile_sparsity"), "budget", "kept fraction")
    _sweep(panels[1], of_whole_model(rows, "profile_window"), "window", "local window (tokens)")
    batch = _seconds(of_whole_model(rows, "profile_batch"), "total")
    for (tokens, method), line in batch.groupby(["n_tokens", "method"]):
        line = line.sort_values("batch")
        style = {"full": ("--", "s"), "wg_kv": ("-", "o")}[method]
        color = (BLUE, ORANGE, GREEN)[sorted(batch["n_tokens"].unique()).index(tokens) % 3]
        label = f"{NAMES[method]}, {tokens // K}K"
        panels[2].plot(line["batch"], 1e3 * line["value"], style[0], color=color, marker=style[1], label=label)
    panels[2].set_xlabel("batch")
    panels[2].set_ylabel("decode step (ms)")
    panels[2].set_xscale("log", base=2)
    panels[2].set_ylim(bottom=0)
    if len(batch):
        panels[2].legend(fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5))
    every = pd.concat([of_whole_model(rows, f"profile_{name}") for name in ("sparsity", "window", "batch")])
    if every.empty:
        raise InputError("there are no rows of the sweeps; run the target latency.")
    figure.suptitle(f"{every['model'].iloc[0]}, {PROTOCOL_NAMES['strongest_baseline']}", fontsize=7.5)
    scaled = every[~every["whole"]]
    text = f"{SETUP} " + (f"Prefill is scaled up from {_timed(scaled)} layers." if len(scaled) else "")
    caption(figure, text, PAGE)
    return figure


def _end_to_end_figure(rows: pd.DataFrame, settings: Settings, model: str) -> Figure:
    found, published = _end_to_end(rows, model), _of(plotted(settings), model)
    figure, grid = plt.subplots(2, 3, figsize=(PAGE, 3.9), layout="constrained")
    for line, protocol in zip(grid, PROTOCOLS, strict=True):
        ours = found[found["protocol"] == protocol]
        for axes, panel in zip(line, PANELS, strict=True):
            lengths = _lengths(found, panel)
            places = np.arange(len(lengths), dtype=float)
            for shift, method in ((-0.22, "full"), (0.22, "wg_kv")):
                mine = _stack(ours[ours["method"] == method], panel, lengths)
                _bars(axes, mine, panel, places + shift, 0.38, method)
                if protocol == "paper":
                    theirs = _stack(published[published["method"] == method], panel, lengths)
                    _outlines(axes, theirs, panel, places + shift, 0.42)
            _ratios(axes, rows, panel, model, protocol, lengths)
            _ticks(axes, panel, lengths)
            axes.set_title(f"{panel.title}, {PROTOCOL_NAMES[protocol]}", fontsize=6.5)
    _legend(figure, PANELS, bool(len(published)))
    figure.suptitle(f"{model}, one context; left bars full attention, right bars WG-KV", fontsize=7.5)
    caption(figure, _text_of(settings, model) + _note(found, len(published), stars=True), PAGE)
    return figure


def _end_to_end(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    found = of_whole_model(rows, END_TO_END)
    found = found[found["model"] == model]
    if found.empty:
        raise InputError(f"there are no profile rows of {model}; run the target latency.")
    return found


def _of(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    return frame[frame["model"] == model]


def _lengths(found: pd.DataFrame, panel: Panel) -> list[int]:
    return sorted(found.loc[found["task"] == panel.phase, "n_tokens"].unique())


def _stack(found: pd.DataFrame, panel: Panel, lengths: list[int], share: bool = False) -> pd.DataFrame:
    """Values by length and component, in the axis' unit; the columns ``whole`` and ``failed`` say what they are."""
    part = found[(found["task"] == panel.phase) & (found["metric"] == panel.metric)]
    part = part[part["component"].isin(panel.parts)]
    wide = part.pivot_table(index="n_tokens", columns="component", values="value", aggfunc="first", dropna=False)
    wide = wide.reindex(index=lengths, columns=list(panel.parts)).astype(float) * panel.scale
    if share:
        wide = wide.div(wide.sum(axis=1, skipna=False), axis=0)
    there = part.groupby("n_tokens")["value"].apply(lambda x: x.isna().all()) if len(part) else pd.Series(dtype=bool)
    wide["failed"] = [bool(there.get(n, False)) for n in lengths]
    whole = part.groupby("n_tokens")["whole"].all() if "whole" in part and len(part) else pd.Series(dtype=bool)
    wide["whole"] = [bool(whole.get(n, True)) for n in lengths]
    return wide


def _bars(axes: Axes, table: pd.DataFrame, panel: Panel, places: np.ndarray, width: float, method: str) -> None:
    bottom = np.zeros(len(table))
    for name in panel.parts:
        bars = axes.bar(
            places, table[name], width, bottom, color=LOOKS[name][1], alpha=1.0 if method == "wg_kv" else 0.6
        )
        for bar, whole in zip(bars, table["whole"], strict=True):
            bar.set_hatch("" if whole else "////")
        bottom += table[name].fillna(0)
    for place, failed in zip(places, table["failed"], strict=True):
        if failed:
            axes.text(place, 0, " OOM", rotation=90, ha="center", va="bottom", fontsize=5.5, color=RED)


def _outlines(axes: Axes, table: pd.DataFrame, panel: Panel, places: np.ndarray, width: float) -> None:
    """The published values as empty bars."""
    bottom = np.zeros(len(table))
    for name in panel.parts:
        axes.bar(places, table[name], width, bottom, fill=False, edgecolor="black", linewidth=0.6, linestyle=":")
        bottom += table[name].fillna(0)


def _ratios(axes: Axes, rows: pd.DataFrame, panel: Panel, model: str, protocol: str, lengths: list[int]) -> None:
    """Our speed-up or saving above each pair of bars."""
    top = axes.get_ylim()[1]
    axes.set_ylim(0, top * 1.08)
    for place, tokens in enumerate(lengths):
        if panel.metric != "seconds":
            continue
        found = speedup(rows, model, panel.phase, tokens, protocol)
        if found is not None and np.isfinite(found.value):
            mark = "" if found.whole else "*"
            axes.text(place, top * 1.02, f"{found.value:.2f}×{mark}", ha="center", fontsize=5.5)


def _ticks(axes: Axes, panel: Panel, lengths: list[int]) -> None:
    axes.set_xticks(np.arange(len(lengths)), [f"{n // K}K" if n >= K else str(n) for n in lengths])
    axes.set_xlim(-0.6, max(len(lengths), 1) - 0.4)
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel(panel.label)
    axes.set_title(panel.title, fontsize=7)
    if not axes.texts and not any(np.isfinite(bar.get_height()) for bar in axes.patches):
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color="0.35")
        axes.set_yticks([])


def _legend(figure: Figure, panels: tuple[Panel, ...], published: bool) -> None:
    names = dict.fromkeys(name for panel in panels for name in panel.parts)
    handles = [Patch(color=LOOKS[name][1], label=LOOKS[name][0]) for name in names]
    if published:
        handles.append(Patch(fill=False, edgecolor="black", linestyle=":", label="published"))
    figure.legend(handles=handles, loc="outside right center")


def _seconds(found: pd.DataFrame, component: str) -> pd.DataFrame:
    return found[(found["metric"] == "seconds") & (found["component"] == component)]


def _sweep(axes: Axes, found: pd.DataFrame, column: str, label: str) -> None:
    """Attention time of both phases against one option, each relative to its largest."""
    for phase, color, marker in (("prefill", BLUE, "o"), ("decode", ORANGE, "s")):
        line = _seconds(found[found["task"] == phase], "attention").sort_values(column)
        if len(line):
            name = f"{phase}, of {line['value'].max():.3g} s"
            axes.plot(line[column], line["value"] / line["value"].max(), color=color, marker=marker, label=name)
    axes.set_xlabel(label)
    axes.set_ylabel("attention time (relative)")
    axes.set_ylim(0, 1.05)
    if axes.lines:
        axes.legend()


def _text_of(settings: Settings, model: str) -> str:
    """The ranges that the paper's text gives."""
    said = settings.published.get(model)
    if said is None:
        return ""
    ends = f"{said['tokens'][0] // K}K–{said['tokens'][1] // K}K"
    prefill, decode, memory = ("–".join(f"{x:g}" for x in said[name]) for name in ("prefill", "decode", "memory"))
    return f"The paper's text ({said['place']}, {ends}): prefill {prefill}×, decode {decode}×, memory −{memory} %. "


def _timed(scaled: pd.DataFrame) -> str:
    """How many layers were timed of those that a model has."""
    fewest, most = scaled["layers_timed"].min(), scaled["layers_timed"].max()
    return f"{fewest if fewest == most else f'{fewest} to {most}'} of {scaled['layers'].max()}"


def _note(found: pd.DataFrame, published: int, stars: bool) -> str:
    scaled = found[~found["whole"]]
    parts = [SETUP]
    if len(scaled):
        parts.append(
            f"Hatched bars{', and ratios with a star' if stars else ''}: scaled up from {_timed(scaled)} layers."
        )
    failed = found[(found["reason"] != "") & found["value"].isna()]
    if len(failed):
        parts.append("OOM: ran out of memory.")
    if published:
        parts.append("Dotted outlines: published (Figures 8 and 15).")
    return " ".join(parts)
