"""Rows of the scoring cost with round numbers, for tests of what reads them; nothing here was measured."""

from __future__ import annotations

import pandas as pd

from kvrepro.profiling.scoring import COLUMNS, GATHERING, PREFILL, Settings, as_dict

SPEEDUP = 2.0  #: of every published time


def benchmark_rows(settings: Settings, layers_timed: int | None = None) -> pd.DataFrame:
    """The benchmark's rows of both models: half the published times, a prefill of 0.1 s a thousand tokens, a GiB each.

    ``layers_timed`` limits KVzip and the prefill.
    """
    rows = []
    for name, shape in settings.shapes.items():
        for method in (*settings.methods, PREFILL):
            for place, tokens in enumerate(settings.lengths):
                passes = method in ("kvzip", PREFILL)
                timed = layers_timed if passes and layers_timed else shape.layers
                said = tokens / 10240 if method == PREFILL else settings.published[shape.table][method][place] / SPEEDUP
                row = as_dict(
                    model=name, method=method, tokens=tokens, seconds=said * timed / shape.layers, layers=shape.layers,
                    layers_timed=timed, attention_seconds=said / 2 if passes else float("nan"), extra_mib=1024.0,
                    passes=3,
                )  # fmt: skip
                rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def with_gathering(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and those of GateSight once more, as of the variant that gathers its signals first."""
    return pd.concat([rows, rows[rows["method"] == "gatesight"].assign(variant=GATHERING)], ignore_index=True)
