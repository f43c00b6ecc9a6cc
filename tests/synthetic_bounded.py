"""Rows of reasoning with and without a limit of the cache, with known accuracies, entries and evictions."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from synthetic_rows import CACHES, accuracy_rows

FULL = (0.75, 1000)  #: accuracy and entries a head of the full cache
GATES = {0.16: (0.75, 500), 0.32: (0.75, 300), 1.28: (0.5, 100)}  #: the same by λ, without a limit
#: Accuracy and evictions by limit and λ, None without admission.
LIMITS = {
    250: {None: (0.25, 40), 0.16: (0.5, 20), 0.32: (0.75, 10), 1.28: (0.5, 0)},
    400: {None: (0.5, 24), 0.16: (0.5, 6), 0.32: (0.75, 0), 1.28: (0.5, 0)},
}


def bounded_rows(items: int = 12, task: str = "registers", dense: float = FULL[0]) -> pd.DataFrame:
    """Rows of one model; an item's entries and evictions are those above."""
    rows = accuracy_rows({}, (task,), items, model="lab-dense", paper="wg_kv", n_tokens=170, benchmark="reasoning")

    def arm(name: str, options: dict, accuracy: float, entries: int, evictions: int, kept: float = np.nan):
        own = rows[rows["method"] == "dense"]
        right = (own["item"] < round(accuracy * items)).astype(float)
        held = {"peak_entries": CACHES * entries, "evictions": evictions}
        return own.assign(method=name, options=json.dumps(options), budget=kept, value=right, **held)

    whole = {"allocation": "flat", "eviction": {"method": "full"}}
    made = [arm(name, whole, dense, FULL[1], 0, 1.0) for name in ("dense", "full")]
    gate = {trade: {"method": "write_gate", "threshold": 0.1, "trade_off": trade} for trade in GATES}
    made += [arm(f"wg_kv@trade_off={t}", {"admission": gate[t]}, *held, 0) for t, held in GATES.items()]
    for budget, found in LIMITS.items():
        limit = {"bounding": {"method": "snapkv", "budget": budget}}
        for trade, (accuracy, evictions) in found.items():
            name = "snapkv" if trade is None else f"wg_kv+snapkv@trade_off={trade}"
            options = limit if trade is None else limit | {"admission": gate[trade]}
            entries = budget if trade is None else min(budget, GATES[trade][1])
            made.append(arm(f"{name}@budget={budget}", options, accuracy, entries, evictions))
    made.append(arm("local_attention", {"admission": {"method": "local_attention"}}, 1, 50, 0, 0.1))
    steps = made[0].assign(metric="steps", value=0.9)
    return pd.concat([*made, steps], ignore_index=True)
