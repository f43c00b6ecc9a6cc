"""The goals of WG-KV that a tier's own rows answer, each with what was measured; those of latency are in ``goals``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kvrepro.analysis import bounded, cache_sizes, trade_off
from kvrepro.analysis.accuracy import unanswered
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.bounded import Bounded, Setting
from kvrepro.analysis.cache_sizes import THRESHOLD
from kvrepro.analysis.names import METHODS
from kvrepro.errors import InputError
from kvrepro.figures.style import model_title
from kvrepro.tables.markdown import Table, interval, number

COLUMNS = ["goal_id", "what", "measured", "low", "high", "unit", "goal"]
BELOW = 0.4  #: cache size below which methods are compared (§5.2)
RETRIEVAL = "ruler"
EVICTION = "snapkv"
TRAINED = (4096, 8)  #: length and rows of the batches whose training with gates is compared with that without


def goals(rows: pd.DataFrame, lab: bool = False, measured: Sequence[pd.DataFrame] = ()) -> tuple[pd.DataFrame, str]:
    """One row a goal with the columns COLUMNS, and Markdown; ``measured`` is empty where the rows do not say.

    Reads validation rows of write gates, and accuracy on RULER and on reasoning where there is any; ``measured`` holds
    the benchmark of gate training, where it was run.
    """
    lines = [*_sweep(rows), *_leads(rows), *_reasoning(rows), _training(measured)]
    frame = pd.DataFrame(lines, columns=COLUMNS)
    cells = [[row.what, _cell(row), row.unit, row.goal or "–"] for row in frame.itertuples()]
    note = "Numbers in brackets are 95 % bootstrap intervals. A dash: not run, not answered, or no number was set."
    title = f"Goals of WG-KV, {model_title(rows['model'].iloc[0], lab)}"
    return frame, str(Table(title, ["what", "measured", "unit", "goal"], cells, note))


def _cell(row: Any) -> str:
    digits = 3 if row.unit in ("share", "ratio") else 1
    return number(row.measured, digits) if np.isnan(row.low) else interval(row.measured, row.low, row.high, digits)


def _row(name: str, what: str, found: Estimate | float | None, unit: str, goal: str = "") -> dict[str, Any]:
    numbers = (np.nan,) * 3
    if isinstance(found, Estimate):
        numbers = tuple(map(float, (found.value, found.low, found.high)))
    elif found is not None:
        numbers = (found, np.nan, np.nan)
    return dict(zip(COLUMNS, (name, what, *numbers, unit, goal), strict=True))


def _sweep(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    found = trade_off.trade_off(rows)
    places = found.along(THRESHOLD)
    lambdas = ", ".join(f"{found.points[place][0]:g}" for place in places)
    of = f"write gates at a threshold of {THRESHOLD}, lambdas {lambdas or 'none'}"
    sizes = found.size.map(lambda x: x[..., places]) if places else None
    yield _row("largest_cache", f"{of}: largest normalised cache size", sizes and sizes.map(_most), "share", ">0.6")
    yield _row("smallest_cache", f"{of}: smallest normalised cache size", sizes and sizes.map(_least), "share", "<0.15")
    monotone = None
    if len(places) > 1:
        pairs = ((found.size.value, found.loss.value), (found.size.draws, found.loss.draws))
        monotone = Estimate(*(_falls(size[..., places], loss[..., places]) for size, loss in pairs), found.loss.units)
    what = f"{of}: the held-out loss falls from each cache size to the next larger one, 1 if so"
    yield _row("monotone_loss", what, monotone, "count", ">=1")


def _most(x: np.ndarray) -> np.ndarray:
    return x.max(-1)


def _least(x: np.ndarray) -> np.ndarray:
    return x.min(-1)


def _falls(size: np.ndarray, loss: np.ndarray) -> np.ndarray:
    by_size = np.take_along_axis(loss, size.argsort(-1), -1)
    return (np.diff(by_size, axis=-1) <= 0).all(-1).astype(float)


def _leads(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    try:
        curves = cache_sizes.curves(rows[rows["experiment"] == RETRIEVAL])
    except InputError:
        curves = None
    over = f"{len(curves.result.tasks)} RULER tasks" if curves else "RULER"
    for method in ("local_attention", "duo_attention"):
        found, sizes = None, f"below {BELOW:g}"
        if curves and {"wg_kv", method} <= set(curves.curves):
            both = curves.curves["wg_kv"], curves.curves[method]
            sizes = f"from {cache_sizes.smallest_common(*both):.2f}, the smallest that both held, to {BELOW:g}"
            try:
                found = cache_sizes.smallest_lead(*both, BELOW)
            except InputError:
                found = None
        what = f"WG-KV's smallest lead over {METHODS[method]} at cache sizes {sizes}, mean over {over}"
        yield _row(f"lead_over_{method}", what, found, "points", ">0")


def _reasoning(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    own, found = rows[rows["experiment"] == bounded.BENCHMARK], None
    try:
        if len(own) and not unanswered(own):
            found = bounded.bounded(own)
    except InputError:
        found = None
    limit = None if found is None else bounded.several(found)
    within = "under a limit" if limit is None else f"under a limit of {limit} entries a head"
    both = [] if limit is None else found.where(lambda s: (s.bounding, s.budget) == (EVICTION, limit) and s.trade_off)
    yield _row("unbounded", "reasoning: accuracy without a limit", _accuracy(found, Setting()), "%")
    alone = None if limit is None else Setting(None, limit, EVICTION)
    yield _row("snapkv_alone", f"reasoning: accuracy of SnapKV alone {within}", _accuracy(found, alone), "%")
    for setting in [found.settings[place] for place in both] or [None]:
        name, of = ("", "") if setting is None else (f"@trade_off={setting.label}", f", lambda {setting.label},")
        what = f"reasoning: accuracy of WG-KV + SnapKV{of} {within}"
        yield _row(f"wg_kv+snapkv{name}", what, _accuracy(found, setting), "%")


def _accuracy(found: Bounded | None, setting: Setting | None) -> Estimate | None:
    if found is None or setting not in found.settings:
        return None
    place = found.place(setting)
    return found.accuracy.map(lambda x: x[..., place])


def _training(measured: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Time of a step with gates over that without, on the committed GPU, whatever the tier."""
    length, batch = TRAINED
    overhead = None
    for frame in measured:
        of = frame[(frame["length"] == length) & (frame["rows"] == batch)].set_index("what")["seconds"]
        if {"with_gates", "without_gates"} <= set(of.index):
            overhead = 100 * (of["with_gates"] / of["without_gates"] - 1)
    what = (
        f"training of gates, {length} tokens x {batch}, on the GPU of the committed benchmark: time beyond that without"
    )
    return _row("gate_training_overhead", what, overhead, "%", "<=25")
