"""Scoring cost (GateSight §5.3): ``config/scoring.yaml`` as objects, and the rows of the benchmark. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvrepro import yamlfile
from kvrepro.errors import InputError, unknown
from kvrepro.profiling.rows import PROFILE

CONFIG = Path("config/scoring.yaml")
EXPERIMENT = "scoring_cost"
GATHERING = "with gathering"  #: variant of GateSight that makes the signals before it scores, as the paper timed it
PREFILL = "prefill"  #: what the column ``method`` says of the forward pass over the context
#: Columns of the benchmark's CSV. ``variant`` is empty for a method as it is shipped. ``seconds`` are those of
#: ``layers_timed`` layers; ``seconds_scaled_to_all_layers`` is filled where these are not all.
COLUMNS = (
    "model", "method", "variant", "tokens", "seconds", "seconds_scaled_to_all_layers", "layers_timed", "layers",
    "attention_seconds", "extra_mib", "passes", "timing", "error", "reason",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The shape of a model; the fields are the keys of ``models`` in config/scoring.yaml."""

    name: str
    table: str
    source: str
    layers: int
    attention_every: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    gdn_key_heads: int
    gdn_heads: int
    gdn_head_dim: int
    hidden: int
    intermediate: int | None

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Numbers of the attention layers."""
        return tuple(range(self.attention_every - 1, self.layers, self.attention_every))

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        """Numbers of the Gated DeltaNet layers."""
        return tuple(i for i in range(self.layers) if i not in self.attention_layers)


@dataclass(frozen=True)
class Settings:
    """What is measured and what was published."""

    shapes: Mapping[str, Shape]
    estimators: Mapping[str, int | list[int]]  # window, hidden, and the windows of Table 7
    lengths: tuple[int, ...]
    published: Mapping[str, Mapping[str, list[float]]]  # table -> method -> seconds by length
    prefill: Mapping[str, float]  # table -> seconds of the prefill of the longest context
    goals: Mapping[str, float]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that the paper times, its own first."""
        return tuple(next(iter(self.published.values())))

    def model_of(self, table: str) -> str:
        """The model of a table."""
        return next(name for name, shape in self.shapes.items() if shape.table == table)


def load(path: str | Path = CONFIG) -> Settings:
    """The settings; InputError names keys that are missing or unknown, and published rows of the wrong length."""
    content = yamlfile.mapping(path, "restore it from the repository")
    fields = set(Shape.__dataclass_fields__) - {"name"}
    for name, raw in content["models"].items():
        if set(raw) != fields:
            wrong = ", ".join(sorted(set(raw) ^ fields))
            raise InputError(f"{path}: model {name!r} has other keys than expected ({wrong}); add or remove them.")
        if raw["table"] not in content["published"]:
            raise unknown("table", raw["table"], content["published"], f"{path}: model {name!r}")
    lengths = tuple(content["lengths"])
    for table, methods in content["published"].items():
        for method, seconds in methods.items():
            if len(seconds) != len(lengths):
                raise InputError(f"{path}: {table} gives {len(seconds)} times of {method} for {len(lengths)} lengths.")
    shapes = {name: Shape(name, **raw) for name, raw in content["models"].items()}
    return Settings(shapes, content["estimators"], lengths, content["published"], content["prefill"], content["goals"])


def read(path: str | Path) -> pd.DataFrame:
    """The benchmark's CSV; InputError when the file is not one."""
    try:
        found = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); run the benchmark of the scoring cost again.") from error
    if missing := [c for c in COLUMNS if c not in found]:
        raise InputError(f"{path} has no column {', '.join(missing)}; run the benchmark of the scoring cost again.")
    return found


def tidy(found: pd.DataFrame, tier: str) -> pd.DataFrame:
    """Profile rows of the benchmark's: seconds, of which attention, and bytes of extra memory.

    Rows that failed keep their reason and have no value; rows of variants say which in ``options``.
    """
    text = found[["model", "method", "variant", "timing", "reason"]].astype(object).fillna("").astype(str)
    base = pd.DataFrame(
        {
            **text[["model", "method", "timing", "reason"]],
            "options": text["variant"].map(_options),
            "n_tokens": found["tokens"],
            "layers": found["layers"],
            "layers_timed": found["layers_timed"],
            "passes": found["passes"].fillna(0),
        }
    ).assign(
        paper="gatesight", experiment=EXPERIMENT, tier=tier, budget=1.0, task="scoring", item=0, seed=0,
        protocol="kernel", batch=1, window=1,
    )  # fmt: skip
    parts = [
        base.assign(metric=metric, component=component, value=found[column] * scale)
        for metric, component, column, scale in (
            ("seconds", "total", "seconds", 1.0),
            ("seconds", "attention", "attention_seconds", 1.0),
            ("bytes", "extra", "extra_mib", 2.0**20),
        )
    ]
    total, *rest = parts
    rows = pd.concat([total, *(part[part["value"].notna()] for part in rest)], ignore_index=True)
    return PROFILE.validate(rows, lazy=True)


def _options(variant: str) -> str:
    return f'{{"variant": "{variant}"}}' if variant else "{}"


def rows_of(found: pd.DataFrame, shape: Shape, tier: str) -> pd.DataFrame:
    """Profile rows of one model; where the benchmark did not come to it, a row without a value that says so."""
    mine = found[found["model"] == shape.name]
    if mine.empty:
        left_out = as_dict(
            model=shape.name, method="gatesight", tokens=0, layers=shape.layers, layers_timed=shape.layers,
            seconds=float("nan"), attention_seconds=float("nan"), extra_mib=float("nan"), passes=0, reason="not run",
        )  # fmt: skip
        mine = pd.DataFrame([left_out])
    return tidy(mine, tier)


def no_rows() -> pd.DataFrame:
    """A frame of profile rows that holds none."""
    return pd.DataFrame(columns=list(PROFILE.columns))


@dataclass(frozen=True)
class Cost:
    """What was measured of a method at a length; ``value`` is scaled up where ``whole`` is False."""

    value: float
    whole: bool
    layers: str  # "4 of 64"


def cost(
    rows: pd.DataFrame, model: str, method: str, tokens: int, component: str = "total", variant: str = ""
) -> Cost | None:
    """Seconds of a method (or bytes, component ``extra``), the last that were measured, or None.

    A method is as it is shipped where no ``variant`` is named.
    """
    found = rows[(rows["experiment"] == EXPERIMENT) & (rows["model"] == model) & (rows["method"] == method)]
    found = found[(found["n_tokens"] == tokens) & (found["component"] == component)]
    found = found[(found["options"] == _options(variant)) & found["value"].notna()]
    if found.empty:
        return None
    row = found.iloc[-1]
    whole = row["layers_timed"] == row["layers"]
    scale = 1.0 if whole or row["metric"] == "bytes" else row["layers"] / row["layers_timed"]
    return Cost(float(row["value"] * scale), bool(whole), f"{row['layers_timed']} of {row['layers']}")


def as_dict(**values: Any) -> dict[str, Any]:
    """A row of the CSV with every column, empty where nothing is given; InputError for a column it does not have."""
    if strange := set(values) - set(COLUMNS):
        raise InputError(f"rows of the scoring cost have no column {', '.join(sorted(strange))}.")
    return {name: values.get(name, "") for name in COLUMNS}
