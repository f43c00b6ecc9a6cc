"""GateSight Table 1 and its complete form, Table 5: how well each predictor ranks the entries of a head."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kvrepro.analysis import summary
from kvrepro.analysis.names import METRICS, PREDICTORS
from kvrepro.figures.style import model_title
from kvrepro.tables.markdown import Table, interval

SHORT = ("random", "age", "write_slow", "oracle", "ridge", "mlp")
HEADS = {"spearman": "ρ"} | {m: m.replace("overlap", "Ov").replace("coverage", "Cov") + " (%)" for m in METRICS[1:]}


def table_1(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """The predictors and metrics of the main text: a frame with one row a predictor, and Markdown."""
    return _table("Table 1: predicting utility", rows, SHORT, ("spearman", "overlap@10"), lab)


def table_5(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """All predictors and metrics."""
    return _table("Table 5: predicting utility, complete", rows, tuple(PREDICTORS), METRICS, lab)


def _table(
    title: str, rows: pd.DataFrame, names: Sequence[str], metrics: Sequence[str], lab: bool
) -> tuple[pd.DataFrame, str]:
    found = summary.predictor_rows_of(rows)
    names = [name for name in names if name in set(found["method"])]
    frame = summary.table(found, names, metrics)
    cells = []
    for _, row in frame.iterrows():
        line = [PREDICTORS[row["predictor"]]]
        for metric in metrics:
            digits, sign = (3, True) if metric == "spearman" else (1, False)
            best = row[metric] == frame[metric].max()
            line.append(interval(row[metric], row[f"{metric} low"], row[f"{metric} high"], digits, sign, best))
        cells.append(line)
    note = (
        f"Mean over KV heads, attention layers and {summary.documents(found)} documents, with 95 % bootstrap intervals "
        "over documents; the best of a column in bold. Learned predictors are tested on the corpus they were not "
        "trained on; the oracle is chosen with the true utility."
    )
    model = model_title(rows["model"].iloc[0], lab)
    return frame, str(Table(f"{title}, {model}", ["predictor", *(HEADS[m] for m in metrics)], cells, note))
