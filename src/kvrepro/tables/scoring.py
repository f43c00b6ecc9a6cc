"""GateSight's Tables 2 and 8, published scoring times beside ours, and the goals on them, from the benchmark's rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from kvrepro.figures.style import look
from kvrepro.profiling.scoring import GATHERING, PREFILL, Cost, Settings, cost
from kvrepro.tables.goals import COLUMNS, goal_row
from kvrepro.tables.markdown import Table, number

K = 1024
GIB = 2.0**30
SELF = "gatesight"
NOT_RUN = "not run"


def scoring_table(rows: pd.DataFrame, settings: Settings, table: str) -> tuple[pd.DataFrame, str]:
    """Seconds of scoring a context by method and length, published and ours (§5.3, Appendix H).

    A frame of method, variant, n_tokens, published, measured, layers_timed and extra_gib, and Markdown. GateSight has a
    further row with the gathering of its signals, which the published time includes. The prefill is a row of its own;
    the paper gives its time at the longest context only.
    """
    model, published = settings.model_of(table), settings.published[table]
    lines, longest = [], settings.lengths[-1]
    for method, variant in [(SELF, ""), (SELF, GATHERING), *((m, "") for m in (*published, PREFILL) if m != SELF)]:
        said = published.get(method, [float("nan")] * (len(settings.lengths) - 1) + [settings.prefill[table]])
        for tokens, value in zip(settings.lengths, said, strict=True):
            found = cost(rows, model, method, tokens, variant=variant)
            extra = cost(rows, model, method, tokens, "extra", variant)
            lines.append(
                {
                    "method": method,
                    "variant": variant,
                    "n_tokens": tokens,
                    "published": value,
                    "measured": found.value if found else float("nan"),
                    "layers_timed": found.layers if found else NOT_RUN,
                    "extra_gib": extra.value / GIB if extra else float("nan"),
                    "_cell": _cell(value, found),
                }
            )
    frame = pd.DataFrame(lines)
    body = []
    for (method, variant), part in frame.groupby(["method", "variant"], sort=False):
        memory = part.loc[part["n_tokens"] == longest, "extra_gib"].item()
        shown = number(memory, 2) if memory == memory else NOT_RUN
        body.append([", ".join(filter(None, (_label(method), variant))), *part["_cell"], shown])
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
        "after a warm-up, on one GPU. Extra memory is what the allocator held at most above what was there before. "
        "The published time of GateSight gathers the signals of the GDN layers and runs the networks; ours starts from "
        f"gathered signals, and the row “{GATHERING}” makes them first, from logits and value vectors."
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
    """Goals at the longest context of Tables 2 and 8, with the columns of :data:`kvrepro.tables.goals.COLUMNS`."""
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
    gathering = cost(rows, model, SELF, tokens, variant=GATHERING)
    yield goal_row(
        "gatesight_scoring_seconds_with_gathering",
        f"{at} with GateSight, signals of the GDN layers gathered first, as in the published time",
        gathering.value if gathering else None,
        "s",
        f"<={settings.published['table_2'][SELF][-1]:g}",
        "0.037",  # logits and value vectors read, signals written and read, at the rate of a plain read
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
    yield from _over_published(rows, settings, "table_2", "", "the published one")
    yield from _over_published(rows, settings, "table_8", "_flash_next", "the published one on two GPUs")
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


def _over_published(
    rows: pd.DataFrame, settings: Settings, table: str, suffix: str, published: str
) -> Iterator[dict[str, Any]]:
    """Times of the methods beside GateSight over those of a table, at its longest context."""
    model, tokens = settings.model_of(table), settings.lengths[-1]
    for method, seconds in settings.published[table].items():
        if method == SELF:
            continue
        c = cost(rows, model, method, tokens)
        scaled = f", scaled up from {c.layers} layers" if c and not c.whole else ""
        yield goal_row(
            f"{method}_over_published{suffix}",
            f"scoring {tokens} tokens of {model} with {_label(method)}: our time over {published}{scaled}",
            c.value / seconds[-1] if c else None,
            "ratio",
            "<=1",
            "",
            "kernel",
        )
