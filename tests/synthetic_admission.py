"""Rows of admission methods and of the validation of write gates, with known cache sizes and values, for tests."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from synthetic_rows import CACHES, TASKS, accuracy_rows

KEPT = (0.1, 0.2, 0.4, 1.0)
#: Accuracy by what is held. Gates hold what they decide on; the second item of a task a little more than the first.
GATES = {0.02: (0.6, 1.0), 0.08: (0.3, 1.0), 0.64: (0.1, 0.75)}
BASELINES = {"local_attention": (0.25, 0.5, 0.75, 1.0), "duo_attention": (0.5, 0.75, 0.75, 1.0)}
#: What is stored, and accuracy by what is read.
BUDGETS, LOCAL = (64, 128, 256), 32
SELECTIONS = {"quest": (1.0, (0.5, 0.75, 1.0)), "wg_kv+quest": (0.3, (0.5, 1.0, 0.75))}
LAMBDAS, THRESHOLDS = (0.02, 0.08, 0.64), (0.05, 0.1, 0.5)
DECIDED = {0.02: 0.9, 0.08: 0.7, 0.64: 0.8}  #: share of gates close to zero or one at τ = 0.1


def admission_rows(experiment: str = "ruler", items: int = 12, tasks=TASKS, model: str = "lab-dense") -> pd.DataFrame:
    """Accuracy rows of the full cache, of Local Attention and DuoAttention at KEPT, of write gates with the three λ of
    GATES at τ = 0.1 and one at τ = 0.5, and of SELECTIONS at BUDGETS, which are no admission or not only one."""
    rows = accuracy_rows({}, tasks, items, model=model, paper="wg_kv").assign(experiment=experiment)
    dense = rows[rows["method"] == "dense"]

    def arm(name: str, options: dict, kept: float, size: float, accuracy: float) -> pd.DataFrame:
        right = (dense["item"] < round(accuracy * items)).astype(float)
        entries = (CACHES * (size * dense["n_tokens"]).round()).astype(int)
        held = {"kept_entries": entries, "bytes_held": 64 * entries}
        return dense.assign(method=name, options=json.dumps(options), budget=kept, value=right, **held)

    arms = [
        arm(name, {"admission": {"method": name}}, kept, kept, accuracy)
        for name, values in BASELINES.items()
        for kept, accuracy in zip(KEPT, values, strict=True)
    ]
    gates = [(trade, 0.1, *values) for trade, values in GATES.items()] + [(0.02, 0.5, 0.05, 0.0)]
    for trade, threshold, size, accuracy in gates:
        options = {"admission": {"method": "write_gate", "trade_off": trade, "threshold": threshold}}
        suffix = "" if threshold == 0.1 else f"@threshold={threshold}"
        arms.append(arm(f"wg_kv@trade_off={trade}{suffix}", options, np.nan, size, accuracy))
    for name, (size, values) in SELECTIONS.items():
        gates = {"admission": {"method": "write_gate", "trade_off": 0.08}} if size < 1 else {}
        for budget, accuracy in zip(BUDGETS, values, strict=True):
            quest = {"selection": {"method": "quest", "local": LOCAL, "budget": budget}}
            arms.append(arm(f"{name}@budget={budget}", gates | quest, np.nan, size, accuracy))
    return pd.concat([rows, *arms], ignore_index=True)


def size_of(trade: float, threshold: float) -> float:
    """Normalised cache size in the rows: it halves with each λ, and falls with the threshold."""
    return 0.8 * 0.5 ** LAMBDAS.index(trade) * (1 - threshold)


def loss_of(trade: float, threshold: float) -> float:
    """Loss in the rows: one over the cache size, a fifth higher off the paper's threshold."""
    return 0.01 / size_of(trade, threshold) * (1 if threshold == 0.1 else 1.2)


def validation_rows(
    items: int = 12, model: str = "lab-dense", lambdas=LAMBDAS, thresholds=THRESHOLDS, window: int = 32, cost: float = 1
) -> pd.DataFrame:
    """Rows as :mod:`kvrepro.training.gates.validation` writes them: two lengths of ``items`` rows, whose sizes and
    losses are those of size_of and loss_of (``cost`` times) times a factor of the row's own that is 1 on average."""
    same = {"paper": "wg_kv", "experiment": "write_gate_validation", "tier": "quick", "model": model, "seed": 0}
    rows = []
    for length in (512, 1024):
        for item, own in enumerate(np.linspace(0.9, 1.1, items)):
            for trade in lambdas:
                for threshold in thresholds:
                    options = {"lambda": trade, "threshold": threshold, "window": window}
                    base = same | {
                        "method": "write_gate",
                        "options": json.dumps(options, sort_keys=True),
                        "budget": own * size_of(trade, threshold),
                        "task": f"held_out_{length}",
                        "item": item,
                    }
                    decided = DECIDED[trade] if threshold == 0.1 else 0.2
                    loss = cost * own * loss_of(trade, threshold)
                    rows.append(base | {"metric": "distillation_loss", "value": loss})
                    rows.append(base | {"metric": "decided_gates", "value": own * decided})
    return pd.DataFrame(rows)


def local_cache_rows() -> pd.DataFrame:
    """Validation rows of gates with a local cache, and without one, where the loss is three times as high."""
    return pd.concat([validation_rows(), validation_rows(window=1, cost=3)], ignore_index=True)


#: Cache sizes [layers, heads] by the kind of context.
HEAD_SIZES = {"code": ((0.9, 0.7), (0.5, 0.7)), "html_to_tsv": ((0.9, 0.1), (0.2, 0.2))}
#: Caches after a document of 1,000 tokens: the share held, and over the document.
GROWTH = {
    "full": {"entries": 1.0, "attended": 500, "evictions": 0, "first_eviction": 1000},
    "wg_kv": {"entries": 0.5, "attended": 250, "evictions": 0, "first_eviction": 1000},
    "snapkv": {"entries": 0.4, "attended": 300, "evictions": 16, "first_eviction": 400},
    "wg_kv+snapkv": {"entries": 0.4, "attended": 225, "evictions": 4, "first_eviction": 800},
}
#: How far gates and caches are from their definitions, most in the second layer.
IDENTITIES = {
    "open_gate": 1e-6,
    "closed_gate": 4e-6,
    "log_space": 2e-6,
    "misplaced_after_prefill": 0,
    "misplaced_after_decoding": 0,
}
ATTENTION = {"top_tenth_share": 0.8, "near_of_ignored": 0.03, "far_of_ignored": 0.01}


def pattern_rows(items: int = 12, model: str = "lab-dense") -> pd.DataFrame:
    """Rows of the patterns of attention and admission: HEAD_SIZES and ATTENTION times a factor of the context's own
    that is 1 on average, 40 crosswise pairs, and traces of two heads over two tokens."""
    same = {"paper": "wg_kv", "tier": "quick", "model": model, "budget": np.nan, "seed": 0}
    rows = []

    def add(experiment, method, options, task, item, metric, value):
        cells = {"experiment": experiment, "method": method, "options": json.dumps(options), "task": task}
        rows.append(same | cells | {"item": item, "metric": metric, "value": value})

    for item, own in enumerate(np.linspace(0.9, 1.1, items)):
        for kind, sizes in HEAD_SIZES.items():
            for layer, of_layer in enumerate(sizes):
                for head, size in enumerate(of_layer):
                    options = {
                        "layer": layer,
                        "head": head,
                        "lambda": 0.08,
                        "threshold": 0.1,
                        "window": 32,
                        "tokens": 999,
                    }
                    add("head_sizes", "write_gate", options, kind, item, "cache_size", own * size)
        for head in range(4):
            for metric, value in ATTENTION.items():
                options = {"layer": 0, "head": head, "window": 32}
                add(
                    "token_utility", "attention", options, "stdlib", item, metric, own * value * (1 + (head - 1.5) / 10)
                )
        add("token_utility", "attention", {"window": 32}, "stdlib", item, "crosswise_pairs", 40 * own)
        for layer in (0, 1):
            for metric, value in IDENTITIES.items():
                add("gate_identities", "write_gate", {"layer": layer}, "stdlib", item, metric, value * (1 + layer))
        for name, values in GROWTH.items():
            options = {} if name == "full" else {"bounding": {"method": "snapkv", "budget": 400}}
            for tokens in (0, 500, 1000):
                add("cache_growth", name, options, f"stdlib {item}", tokens, "entries", tokens * values["entries"])
            for metric in ("attended", "evictions", "first_eviction"):
                add("cache_growth", name, options, f"stdlib {item}", 0, metric, own * values[metric])
    for head, token in ((0, 5), (0, 9), (3, 5), (3, 9)):
        options = {"layer": 1, "head": head, "token": token, "window": 32, "queries": 2}
        for query in range(token + 1, 200, 2):
            add("token_trace", "attention", options, "stdlib", query, "attention", 1 / (query * (1 + head) * token))
    return pd.DataFrame(rows)
