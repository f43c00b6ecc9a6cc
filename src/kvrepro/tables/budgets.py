"""GateSight Table 3 (comparison with KVzip), Table 4 (allocation ablation), and the gate analyses of Appendix D."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kvrepro.analysis import observed
from kvrepro.analysis.accuracy import Accuracy, accuracy
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.names import (
    ABLATION,
    ABLATION_LEAST,
    ALLOCATION_ABLATION,
    ALLOCATIONS,
    BENCHMARKS,
    FIVE_TASKS,
    LAB_LABELS,
    LONG_BUDGETS,
    METHODS,
)
from kvrepro.errors import InputError
from kvrepro.figures.style import model_title
from kvrepro.results import REFERENCES
from kvrepro.tables.accuracy import note
from kvrepro.tables.markdown import Table, interval

COMPARED = ("gatesight", "kvzip")
OF_BUDGETS = ("gate_proportional", "per_head", "flat", "exponent_0.5", "exponent_1.5")


def table_3(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """GateSight and KVzip at every kept fraction below 1 and on their mean, by benchmark: a frame with benchmark,
    method, budget (``mean`` for the mean), accuracy, low and high, and Markdown. What was not run has no row."""
    if rows.empty:
        raise InputError("there are no accuracy rows; run the target accuracy.")
    blocks = {name: rows[rows["experiment"] == name] for name in BENCHMARKS}
    names = {name: METHODS[name] for name in COMPARED}
    return _compared("Table 3: comparison with KVzip", blocks, names, lab)


def table_4(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """Three budget rules on the same scores, over the tasks of the ablation: as :func:`table_3`. Reads the experiment
    budgets."""
    rows = _budgets(rows)
    rows = rows[rows["budget"] >= ABLATION_LEAST]
    blocks = {name: rows[rows["task"].isin(tasks)] for name, tasks in ABLATION.items()}
    names = {name: ALLOCATIONS[name] for name in ALLOCATION_ABLATION}
    return _compared("Table 4: allocation ablation", blocks, names, lab)


def _budgets(rows: pd.DataFrame) -> pd.DataFrame:
    found = rows[(rows["experiment"] == "budgets") & (rows["metric"] == "score")] if len(rows) else rows
    if found.empty:
        raise InputError("there are no rows of budgets; run the target budgets.")
    return found


def _compared(
    title: str, blocks: Mapping[str, pd.DataFrame], names: Mapping[str, str], lab: bool
) -> tuple[pd.DataFrame, str]:
    frames, texts = [], []
    for benchmark, block in blocks.items():
        part = block[block["method"].isin(names) & (block["budget"] < 1)] if len(block) else block
        if part.empty:
            continue
        result, budgets = accuracy(part), sorted(part["budget"].unique(), reverse=True)
        found = {(m, b): x for m in names for b, x in _line(result, m, budgets).items()}
        frames.append(_frame(found).assign(benchmark=benchmark))
        columns = [*budgets, "mean"]
        best = {b: max(found[m, b].value for m in names if (m, b) in found) for b in columns}
        cells = [
            [
                label,
                *(
                    interval(x.value, x.low, x.high, best=x.value == best[b]) if (x := found.get((m, b))) else "not run"
                    for b in columns
                ),
            ]
            for m, label in names.items()
        ]
        model = model_title(part["model"].iloc[0], lab)
        header = ["kept fraction", *(f"{b:g}" for b in budgets), "mean of these"]
        on = BENCHMARKS[part["benchmark"].iloc[0] if "benchmark" in part else benchmark]
        text = f"{f'{LAB_LABELS} ' if lab else ''}{note(result, block)}"
        texts.append(str(Table(f"{title}, {on}, {model}", header, cells, text)))
    if not frames:
        raise InputError(f"there are no rows of {' or '.join(names)}; run the target accuracy.")
    return pd.concat(frames, ignore_index=True), "\n".join(texts)


def _line(result: Accuracy, method: str, budgets: Sequence[float]) -> dict[float | str, Estimate]:
    """A method at each kept fraction and their mean; empty when a kept fraction was not run."""
    try:
        found = {b: result[method, b] for b in budgets}
    except KeyError:
        return {}
    values = list(found.values())
    mean = Estimate(
        np.mean([x.value for x in values]), np.mean([x.draws for x in values], axis=0), result.estimate.units
    )
    return found | {"mean": mean}


def _frame(found: Mapping[tuple[str, float | str], Estimate]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"method": m, "budget": str(b), "accuracy": float(x.value), "low": float(x.low), "high": float(x.high)}
            for (m, b), x in found.items()
        ]
    )


def appendix_d(rows: pd.DataFrame, lab: bool = False) -> tuple[pd.DataFrame, str]:
    """The gate analyses: a frame with analysis, name, budget, value, low and high, and one Markdown table an analysis.

    Reads the experiments gated_ranking, closed_heads, closed_layers, and long_budgets or, where there is none of it,
    budgets.
    """
    own = rows[rows["experiment"] == LONG_BUDGETS]
    scores = own[own["metric"] == "score"] if len(own) else _budgets(rows)
    model = model_title(rows["model"].iloc[0], lab)
    made = [_heads(rows), _layers(rows), _rules(scores[scores["task"].isin(FIVE_TASKS)])]
    frame = pd.concat([part for part, _ in made], ignore_index=True)
    return frame, f"# Appendix D: the output gate, {model}\n\n" + "\n".join(str(table) for _, table in made)


def _row(analysis: str, name: str, x: Estimate, budget: float | None = None) -> dict:
    values = {"value": float(x.value), "low": float(x.low), "high": float(x.high)}
    return {"analysis": analysis, "name": name, "budget": budget} | values


def _heads(rows: pd.DataFrame) -> tuple[pd.DataFrame, Table]:
    costs = observed.closing_costs(rows)
    rho = observed.per_document(rows, "gated_ranking", "gated")
    heads = int(observed.rows_of(rows, "closed_heads")["heads"].max())
    lines = [
        _row("ranking", "gated against open scores within a head, Spearman ρ", rho),
        _row(
            "heads",
            f"next-token accuracy lost without the {heads} heads of lowest gate",
            costs.map(lambda x: x[..., 0]),
        ),
        _row("heads", f"next-token accuracy lost without {heads} random heads", costs.map(lambda x: x[..., 1])),
    ]
    digits = {"ranking": 3, "heads": 2}
    cells = [[x["name"], interval(x["value"], x["low"], x["high"], digits[x["analysis"]])] for x in lines]
    text = "Points of next-token accuracy on held-out documents, with 95 % bootstrap intervals over documents."
    return pd.DataFrame(lines), Table("Within and across heads", ["", "value"], cells, text)


def _layers(rows: pd.DataFrame) -> tuple[pd.DataFrame, Table]:
    found = rows[(rows["experiment"] == "closed_layers") & rows["task"].isin(FIVE_TASKS)]
    result = accuracy(found)
    lines = [_row("layers", name, result[name, 1.0]) for name in found["method"].unique()]
    label = dict.fromkeys(REFERENCES, "all layers")
    cells = [[label.get(x["name"], x["name"]), interval(x["value"], x["low"], x["high"])] for x in lines]
    return pd.DataFrame(lines), Table("Attention layers closed", ["", "accuracy (%)"], cells, note(result, found))


def _rules(scores: pd.DataFrame) -> tuple[pd.DataFrame, Table]:
    rows = scores[scores["method"].isin(OF_BUDGETS) & (scores["budget"] < 1)]
    result, budgets = accuracy(rows), sorted(rows["budget"].unique())
    names = [name for name in OF_BUDGETS if name in set(rows["method"])]  # not per head where heads keep the same
    lines = [_row("budgets", name, result[name, b], b) for name in names for b in budgets]
    cells = [
        [ALLOCATIONS[name], *(interval(x["value"], x["low"], x["high"]) for x in lines if x["name"] == name)]
        for name in names
    ]
    return pd.DataFrame(lines), Table(
        "Budgets from the gate", ["kept fraction", *map(str, budgets)], cells, note(result, scores)
    )
