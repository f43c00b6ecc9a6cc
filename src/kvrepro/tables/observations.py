"""GateSight Table 6 (document length and task text) and Table 7 (width of the estimator's window)."""

from __future__ import annotations

import pandas as pd

from kvrepro.analysis import observed
from kvrepro.analysis.names import LENGTH_PREDICTORS, PREDICTORS
from kvrepro.figures.style import model_title
from kvrepro.tables.markdown import Table, interval, number

IN_SAMPLE = "1K"  #: the set whose documents the estimators were trained on
WINDOW_METRICS = {"spearman": "ρ", "overlap@5": "Ov@5 (%)", "overlap@10": "Ov@10 (%)", "coverage@10": "Cov@10 (%)"}


def table_6(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Spearman correlation and top-10 % overlap of five predictors on every set of documents: a frame with one row a
    set and predictor, and Markdown. Reads the experiment lengths."""
    found, cells = [], []
    for name, documents in observed.sets(rows).items():
        cells.append([f"{name.replace('_', ' ')} ({documents})"])
        values = {m: observed.lengths(rows, m, LENGTH_PREDICTORS, name) for m in ("spearman", "overlap@10")}
        for place, predictor in enumerate(LENGTH_PREDICTORS):
            line = {"set": name, "documents": documents, "predictor": predictor}
            for metric, x in values.items():
                value, low, high = x.value[place], x.low[place], x.high[place]
                line |= {metric: value, f"{metric} low": low, f"{metric} high": high}
                digits, sign = (2, True) if metric == "spearman" else (1, False)
                cells[-1].append(interval(value, low, high, digits, sign))
            found.append(line)
    header = ["set (documents)"] + [f"{PREDICTORS[p]}, {m}" for p in LENGTH_PREDICTORS for m in ("ρ", "Ov@10 (%)")]
    note = (
        "Mean over KV heads, attention layers and documents, with 95 % bootstrap intervals over documents. Slow heads "
        f"and networks are those of the label corpora, applied unchanged; set {IN_SAMPLE} is of these corpora, so its "
        "networks are in-sample."
    )
    title = f"Table 6: across document length and task text, {model_title(rows['model'].iloc[0], lab)}"
    return pd.DataFrame(found), str(Table(title, header, cells, note))


def table_7(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Inputs, parameters and held-out metrics of the networks by window: a frame with one row a window, and Markdown.
    Reads the experiment windows."""
    columns: dict[str, object] = {}
    for metric in ("inputs", "parameters"):
        columns["window"], estimate = observed.windows(rows, metric)
        columns[metric] = estimate.value.astype(int)
    for metric in WINDOW_METRICS:
        _, estimate = observed.windows(rows, metric)
        columns |= {metric: estimate.value, f"{metric} low": estimate.low, f"{metric} high": estimate.high}
    frame = pd.DataFrame(columns)
    cells = [
        [
            str(row["window"]),
            f"{row['inputs']:,}",
            f"{number(row['parameters'] / 1e6, 2)}M",
            *(
                interval(
                    row[m],
                    row[f"{m} low"],
                    row[f"{m} high"],
                    *((3, True) if m == "spearman" else (1, False)),
                    best=row[m] == frame[m].max(),
                )
                for m in WINDOW_METRICS
            ),
        ]
        for row in frame.to_dict("records")
    ]
    note = (
        "Networks with everything but the window alike, tested on the corpus they were not trained on; mean over KV "
        "heads, attention layers and documents, with 95 % bootstrap intervals over documents. Windows that reach "
        "beyond a model's first layer read what there is."
    )
    title = f"Table 7: estimator window sweep, {model_title(rows['model'].iloc[0], lab)}"
    header = ["GDN layers read", "inputs", "parameters", *WINDOW_METRICS.values()]
    return frame, str(Table(title, header, cells, note))
