"""Rows as an evaluation and a comparison of predictors write them, with known means, for tests of what reads them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from kvrepro.analysis.names import METRICS, PREDICTORS

TASKS = ("niah_single_1", "vt", "qa_1")
KEPT = (0.1, 0.5, 1.0)
CACHES = 6  # attention layers x KV heads
LAYERS = (3, 7, 11)


def accuracy_rows(
    methods: dict[str, float],
    tasks=TASKS,
    items: int = 12,
    kept=KEPT,
    model: str = "lab-hybrid",
    paper: str = "gatesight",
    n_tokens: int = 1000,
    benchmark: str = "ruler",
) -> pd.DataFrame:
    """``methods`` maps a name to its accuracy at the smallest kept fraction; it rises linearly to 1 at 1.0.

    Of ``items`` items the first share is right, so that the mean is exact where accuracy times items is whole.
    """
    rows = []
    for task in tasks:
        for item in range(items):
            base = {
                "paper": paper,
                "experiment": benchmark,
                "benchmark": benchmark,
                "tier": "quick",
                "model": model,
                "task": task,
                "subtask": "",
                "item": item,
                "question": 0,
                "metric": "score",
                "seed": 42,
                "n_tokens": n_tokens + item,
                "protected": 20,
                "prompt_sha256": "0" * 64,
                "token_sha256": "0" * 64,
                "finish_reason": "eos",
                "prediction": "x",
                "ok": True,
                "failed_checks": "",
                "options": "{}",
            }
            arms = [("dense", 1.0, 1.0), ("full", 1.0, 1.0)]
            arms += [
                (name, share, low + (1 - low) * (share - kept[0]) / (1 - kept[0]))
                for name, low in methods.items()
                for share in kept
            ]
            for name, share, accuracy in arms:
                entries = CACHES * (20 + round(share * (n_tokens - 20 + item)))
                entries = CACHES * (n_tokens + item) if name == "dense" else entries
                value = float(item < round(accuracy * items))
                cells = {"kept_entries": entries, "bytes_held": entries * 64}
                rows.append(base | cells | {"method": name, "budget": share, "value": value})
    return pd.DataFrame(rows)


PARTS = {"repoqa_and_kv": ("kv", "repoqa"), "summary_with_needles": ("summary", "passkey")}


def scbench_rows(
    methods: dict[str, float],
    official: float = 0.0,
    tasks=("kv", "vt", "choice_eng", "repoqa_and_kv"),
    **options,
) -> pd.DataFrame:
    """Rows of stand-ins, one question each and two of a mixed task, with the scores of all scorers: as ``methods`` says
    by the revised and the corrected one; by the official one the same and, where an answer to choice_eng is wrong,
    ``official``."""
    rows = accuracy_rows(methods, tasks, benchmark="scbench", **options)
    parts = [rows[~rows["task"].isin(PARTS)]]
    for task, names in PARTS.items():
        parts += [rows[rows["task"] == task].assign(subtask=name, question=i) for i, name in enumerate(names)]
    rows = pd.concat(parts, ignore_index=True).assign(benchmark="scbench_stand_in")
    raised = (rows["task"] == "choice_eng") & (rows["value"] == 0)
    by_official = rows.assign(metric="official", value=rows["value"].mask(raised, official))
    return pd.concat([rows, by_official, rows.assign(metric="corrected")], ignore_index=True)


def predictor_rows(
    level: dict[str, float] | None = None, documents: int = 12, corpora=("kjv", "stdlib"), model: str = "lab-hybrid"
) -> pd.DataFrame:
    """Every metric of a predictor is its level (rising through PREDICTORS by default) plus a little per document and
    layer; label checks, gates and the example document are there too."""
    level = level or {name: (i + 1) / 20 for i, name in enumerate([*PREDICTORS, "v"])}
    rng = np.random.default_rng(0)
    same = {"paper": "gatesight", "tier": "quick", "model": model, "budget": np.nan, "seed": 0}
    rows = []

    def add(experiment, method, options, task, item, metric, value):
        rows.append(
            same
            | {
                "experiment": experiment,
                "method": method,
                "options": json.dumps(options),
                "task": task,
                "item": item,
                "metric": metric,
                "value": value,
            }
        )

    for corpus in corpora:
        for item in range(documents):
            noise = rng.normal(0, 0.01)
            for number, layer in enumerate(LAYERS):
                for name, mean in level.items():
                    for metric in METRICS:
                        add("predictors", name, {"layer": layer}, corpus, item, metric, mean + noise + 0.01 * number)
                gate = 0.05 * 4**number + 0.001 * noise
                add("layer_gates", "output_gate", {"layer": layer}, corpus, item, "gate", gate)
            for metric, value in (("closed_form_error", 1e-6), ("module_error", 1e-6), ("covered", 1.0)):
                add("label_checks", "rollout_utility", {}, corpus, item, metric, value)
    for method in ("utility", "write_slow"):
        for position in range(50):
            options = {"layer": 11, "document": 3, "spearman": 0.4}
            add("example_document", method, options, corpora[0], position, "trace", abs(np.sin(position)))
    for corpus in corpora:
        for item in range(documents):
            correlation = 0.4 + 0.02 * (item - (documents - 1) // 2)
            add("example_document", "write_slow", {"layer": 11}, corpus, item, "spearman", correlation)
    return pd.DataFrame(rows)
