"""What a training took: tidy rows beside its result (GateSight Appendix H, WG-KV Appendix C). Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

EXPERIMENT = "training_cost"


def cost_rows(
    what: str,
    numbers: Mapping[str, float],
    about: Mapping[str, Any],
    hardware: str,
    *,
    paper: str,
    tier: str,
    model: str,
) -> list[dict[str, Any]]:
    """Rows of one run: method ``what`` was trained, a metric each of ``numbers`` (``seconds`` of wall time, ``tokens``
    seen); options say the hardware and what else is ``about`` the run."""
    same = {
        "paper": paper,
        "experiment": EXPERIMENT,
        "tier": tier,
        "model": model,
        "method": what,
        "options": json.dumps({**about, "hardware": hardware}, sort_keys=True),
        "budget": float("nan"),
        "task": "training",
        "item": 0,
        "seed": about.get("seed", 0),
    }
    return [same | {"metric": metric, "value": float(value)} for metric, value in numbers.items()]
