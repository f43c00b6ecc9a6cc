"""GateSight's Tables 2 and 8, published scoring times beside ours, and the goals on them, from the benchmark's rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from kvrepro.figures.style import look
from kvrepro.profiling.scoring import PREFILL, Cost, Settings, cost
from kvrepro.tables.goals import COLUMNS, goal_row
from kvrepro.tables.markdown import Table, number

K = 1024
GIB = 2.0**30
SELF = "gatesight"
NOT_RUN = "not run"


def scoring_table(rows: pd.DataFrame, settings: Settings, table: str) -> tuple[pd.DataFrame, str]:
    """Seconds of scoring a context by method and length, published and ours (§5.3, Appendix H).

    A frame of method, n_tokens, published, measured, layers_timed and extra_gib, and Markdown. The prefill is a row of
    its own; the paper gives its time at the longest context only.
    """
    model, published = settings.model_of(table), settings.published[table]
    lines, longest = [], settings.lengths[-1]
    for method in [*published, PREFILL]:
        said = published.get(method, [float("nan")] * (len(settings.lengths) - 1) + [settings.prefill[table]])
        for tokens, value in zip(settings.lengths, said, strict=True):
            found = cost(rows, model, method, tokens)
            extra = cost(rows, model, method, tokens, "extra")
            lines.append(
                {
                    "method": method,
                    "n_tokens": tokens,
                    "published": value,
                    "measured": found.value if found else float("nan"),
                    "layers_timed": found.layers if found else NOT_RUN,
                    "extra_gib": extra.value / GIB if extra else float("nan"),
                    "_cell": _cell(value, found),
                }
            )
    frame = pd.DataFrame(lines)
    cells = frame.pivot(index="method", columns="n_tokens", values="_cell")
    memory = frame[frame["n_tokens"] == longest].set_index("method")["extra_gib"]
    body = [
        [_label(m), *cells.loc[m], number(memory[m], 2) if memory[m] == memory[m] else NOT_RUN]
        for m in frame["method"].unique()
    ]
    header = ["method", *(f"{n // K}K" for n in settings.lengths), f"extra GiB at {longest // K}K"]
    title = f"Scoring time in seconds, published / ours, {model}"
    return frame.drop(columns="_cell"), str(Table(title, header, body, _note(rows, settings, model)))


table_2 = partial(scoring_table, table="table_2")
table_8 = partial(scoring_table, table="table_8")


def _label(method: str) -> str:
    return "prefill" if method == PREFILL else look(method).label


def _cell(published: float, found: Cost | None) -> str:
    ours = NOT_RUN if found is None else number(found.value, 3) + ("" if found.whole else "\\*")
    return f"{number(published, 3)} / {ours}"


def _note(rows: pd.DataFrame, settings: Settings, model: str) -> str:
    shape = settings.shapes[model]
    note = (
        "Random signals, keys, queries and weights of the model's shape; a context is scored once, medians of three "
        "after a warm-up, on one GPU. Extra memory is what the allocator held at most above what was there before."
    )
    mine = rows[(rows["model"] == model) & rows["value"].notna() & (rows["options"] == "{}")]
    if mine.empty:
        note += " Ours were not run."
    elif (mine["layers_timed"] < mine["layers"]).any():
        note += " \\* Scaled up from some of the layers; the rows say of how many."
    if (mine["passes"] == 1).any():
        note += " Passes over layers that took long were timed once; groups of layers share weights."
    if shape.intermediate is None:
        note += " Layers of this model are not run here, so that neither KVzip nor the prefill has a time."
    return note


def scoring_goals(rows: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Goals at the longest context of Table 2, with the columns of :data:`kvrepro.tables.goals.COLUMNS`."""
    return pd.DataFrame(list(_goals(rows, settings)), columns=COLUMNS)


def _goals(rows: pd.DataFrame, settings: Settings) -> Iterator[dict[str, Any]]:
    model, tokens, wanted = settings.model_of("table_2"), settings.lengths[-1], settings.goals
    at = f"scoring {tokens} tokens of {model}"
    found = {m: cost(rows, model, m, tokens) for m in settings.methods}
    ours = found[SELF]
    yield goal_row(
        "gatesight_scoring_seconds",
        f"{at} with GateSight",
        ours.value if ours else None,
        "s",
        f"<={wanted['seconds']:g}",
        "0.010",
        "kernel",
    )
    others = {m: c.value for m, c in found.items() if c is not None}
    fastest = min(others, key=others.get, default=None)
    named = f"the fastest of {len(others)} methods, {_label(fastest)}" if fastest else "the fastest method"
    yield goal_row(
        "gatesight_over_fastest",
        f"{at}: time of GateSight over that of {named}",
        ours.value / others[fastest] if ours and len(others) > 1 else None,
        "ratio",
        f"<={wanted['over_fastest']:g}",
        "1.0",
        "kernel",
    )
    for method, seconds in settings.published["table_2"].items():
        if method != SELF:
            c = found[method]
            scaled = f", scaled up from {c.layers} layers" if c and not c.whole else ""
            yield goal_row(
                f"{method}_over_published",
                f"{at} with {_label(method)}: our time over the published one{scaled}",
                c.value / seconds[-1] if c else None,
                "ratio",
                "<=1",
                "",
                "kernel",
            )
    for method in settings.methods:
        extra = cost(rows, model, method, tokens, "extra")
        yield goal_row(
            f"{method}_scoring_memory",
            f"{at} with {_label(method)}: peak extra memory",
            extra.value / GIB if extra else None,
            "GiB",
            f"<={wanted['extra_gib']:g}",
            "",
            "kernel",
        )
