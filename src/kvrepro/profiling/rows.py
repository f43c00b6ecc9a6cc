"""Tidy rows of what was timed. A value is what was measured, never scaled: ``layers_timed`` says of how many layers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa

from kvrepro.profiling.settings import PROTOCOLS, Job, Profile, Shape
from kvrepro.results import SCHEMA, write_rows

#: Columns of profile rows. ``task`` is the phase of a job or the name of a kernel; metrics are seconds (of a pass or a
#: step), bytes, flops, per_second (of a ceiling) and error (of a kernel, against its reference). A job that did not
#: finish has rows without a value and with a reason.
PROFILE = SCHEMA.add_columns(
    {
        "protocol": pa.Column(str, pa.Check.isin([*PROTOCOLS, "kernel"])),
        "component": pa.Column(str),
        "n_tokens": pa.Column(int, pa.Check.ge(0)),
        "batch": pa.Column(int, pa.Check.gt(0)),
        "window": pa.Column(int, pa.Check.gt(0)),
        "layers": pa.Column(int, pa.Check.gt(0), description="of the model"),
        "layers_timed": pa.Column(int, pa.Check.gt(0)),
        "passes": pa.Column(
            int, pa.Check.ge(0), description="timed passes or steps; the value is their median or mean"
        ),
        "timing": pa.Column(str, description="how the value was timed, in words"),
        "reason": pa.Column(str, description="why there is no value"),
    }
)
SECONDS = ("total", "attention", "non_attention")
BYTES = ("weights", "cache", "peak")


def write(rows: Iterable[Mapping[str, Any]], path: str | Path, provenance: dict[str, Any]) -> None:
    """Validate profile rows and write them as any tidy rows are."""
    frame = PROFILE.validate(pd.DataFrame(list(rows)), lazy=True)
    write_rows(frame, path, provenance)


def job_rows(profile: Profile, shape: Shape, job: Job, found: Any) -> list[dict[str, Any]]:
    """Rows of one job from its :class:`kvrepro.profiling.measure.Measurement`."""
    options = {"weights": "random", "gate_hidden": shape.gate_hidden if job.method == "wg_kv" else 0}
    base = {
        "paper": "wg_kv",
        "experiment": f"profile_{job.experiment}",
        "tier": profile.name,
        "model": job.model,
        "method": job.method,
        "options": json.dumps(options),
        "budget": job.kept,
        "task": job.phase,
        "item": 0,
        "seed": profile.seed,
        "protocol": job.protocol,
        "n_tokens": job.tokens,
        "batch": job.batch,
        "window": job.window,
        "layers": shape.layers,
        "layers_timed": found.layers_timed,
        "passes": found.passes,
        "timing": found.timing,
        "reason": found.reason,
    }
    missing = math.nan if found.reason else None
    parts = dict.fromkeys(SECONDS, missing) | found.seconds
    sizes = dict.fromkeys(BYTES, missing) | found.bytes
    values = [("seconds", name, x) for name, x in parts.items()] + [("bytes", name, x) for name, x in sizes.items()]
    return [
        base | {"metric": metric, "component": name, "value": value}
        for metric, name, value in values
        if value is not None
    ]


def kernel_rows(profile: Profile, name: str, method: str, numbers: Mapping[str, float], **columns: Any) -> list[dict]:
    """Rows of one kernel or ceiling: ``numbers`` by metric; ``columns`` are n_tokens, timing and what else differs."""
    base = {
        "paper": "wg_kv",
        "experiment": "profile_kernels",
        "tier": profile.name,
        "model": "",
        "method": method,
        "options": "{}",
        "budget": 1.0,
        "task": name,
        "item": 0,
        "seed": profile.seed,
        "protocol": "kernel",
        "component": "kernel",
        "n_tokens": 0,
        "batch": 1,
        "window": profile.window,
        "layers": 1,
        "layers_timed": 1,
        "passes": 1,
        "timing": "",
        "reason": "",
    }
    return [base | columns | {"metric": metric, "value": float(value)} for metric, value in numbers.items()]
