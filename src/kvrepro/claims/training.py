"""Queries on what training costs (GateSight Appendix H, WG-KV Appendix C).

A published cost is that of one model on one kind of device, so that rows of another model or device answer nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from kvrepro.analysis.bootstrap import Estimate
from kvrepro.claims.evidence import Evidence, NoRows, exact
from kvrepro.training.cost import EXPERIMENT

UNITS = {"min": ("seconds", 60), "h": ("seconds", 3600), "million tokens": ("tokens", 10**6)}


def training_cost(
    evidence: Evidence, what: str, unit: str, model: str, hardware: Sequence[str] | None = None
) -> Estimate:
    """Wall time of a training run of ``what`` for a model, or the tokens that it sees, mean over runs; of runs on a
    device whose name holds one of ``hardware``, by default any. Runs that went together share their time."""
    if evidence.model != model:
        raise NoRows(f"training for {model}")
    rows, (metric, size) = evidence.of(EXPERIMENT), UNITS[unit]
    rows = rows[(rows["method"] == what) & (rows["metric"] == metric)]
    if hardware is not None:
        devices = rows["options"].map(lambda text: json.loads(text)["hardware"])
        rows = rows[devices.map(lambda device: any(name in device for name in hardware)).astype(bool)]
    if rows.empty:
        raise NoRows(f"{metric} of training {what} on {' or '.join(hardware or ['any device'])}")
    shared = rows["options"].map(lambda text: json.loads(text).get("together", 1)) if metric == "seconds" else 1
    return exact((rows["value"] / shared).mean() / size)


TRAINING_QUERIES: tuple[Callable[..., Estimate], ...] = (training_cost,)
