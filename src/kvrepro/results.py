"""Tidy results: one row a measurement, Parquet with a provenance sidecar, validated and atomic.

Figures, tables and claims read nothing else, so they can be redrawn without a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa

from kvrepro.errors import InputError
from kvrepro.files import atomic, sha256_file

PACKAGES = ("torch", "transformers", "triton", "vllm", "kvpress", "pandas", "snakemake", "kvrepro")

#: Keys of provenance that differ between two runs with the same result. Hashes of sources are parameters called code.
CIRCUMSTANCES = {
    "made", "commit", "config", "params_hash", "python", "packages", "hardware", "peak_rss_mib", "cuda", "driver",
    "peak_gpu_mib", "wall_seconds",
}  # fmt: skip

SCHEMA = pa.DataFrameSchema(
    {
        "paper": pa.Column(str, pa.Check.isin(["gatesight", "wg_kv"])),
        "experiment": pa.Column(str),
        "tier": pa.Column(str),
        "model": pa.Column(str),
        "method": pa.Column(str),
        "options": pa.Column(str, description="JSON of the method's options, allocation included"),
        "budget": pa.Column(float, pa.Check.in_range(0, 1, include_min=False), nullable=True, description="kept"),
        "task": pa.Column(str),
        "item": pa.Column(int),
        "metric": pa.Column(str),
        "value": pa.Column(float, nullable=True),
        "seed": pa.Column(int),
    },
    strict=False,
    coerce=True,
)

#: Further columns of accuracy rows: the checks of every answer (design: "Checks carried by every accuracy row").
ANSWERS = SCHEMA.add_columns(
    {
        "benchmark": pa.Column(str, required=False, description="as the examples name it; generated stand-ins differ"),
        "subtask": pa.Column(str, required=False, description="part of a mixed task, empty where there is none"),
        "unit": pa.Column(int, required=False, description="items of one question or context, named by the first"),
        "n_tokens": pa.Column(int, pa.Check.gt(0), description="context length"),
        "protected": pa.Column(int, pa.Check.ge(0)),
        "kept_entries": pa.Column(int, pa.Check.gt(0), description="entries held over all layers and KV heads"),
        "bytes_held": pa.Column(int, pa.Check.gt(0)),
        "peak_entries": pa.Column(int, pa.Check.gt(0), required=False, description="most held up to the answer's end"),
        "evictions": pa.Column(int, pa.Check.ge(0), required=False, description="of context, question and answer"),
        "prompt_sha256": pa.Column(str, pa.Check.str_length(64, 64)),
        "token_sha256": pa.Column(str, pa.Check.str_length(64, 64)),
        "finish_reason": pa.Column(str, pa.Check.isin(["eos", "length"])),
        "prediction": pa.Column(str),
        "ok": pa.Column(bool),
        "failed_checks": pa.Column(str, description="names of failed checks, empty when ok"),
    }
)


#: Names in the column method of the unpruned model's rows: its own cache, and a child of a fork that keeps everything.
DENSE, FULL = REFERENCES = ("dense", "full")


def write_rows(rows: Iterable[dict[str, Any]] | pd.DataFrame, path: str | Path, provenance: dict[str, Any]) -> None:
    """Validate rows and write them as Parquet with ``<path>.json`` beside it.

    Rows with a ``failed_checks`` column are validated as answers. Raises InputError when there are no rows or a column
    is wrong.
    """
    path = Path(path)
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    if frame.empty:
        raise InputError(f"{path}: there are no rows to write; check the config's tasks and items.")
    schema = ANSWERS if "failed_checks" in frame else SCHEMA
    try:
        frame = schema.validate(frame, lazy=True)
    except pa.errors.SchemaErrors as error:
        first = error.failure_cases.iloc[0]
        raise InputError(
            f"{path}: column {first['column']!r} fails {first['check']} with {first['failure_case']!r}; fix the rule "
            "that makes it."
        ) from error
    with atomic(path) as temporary:
        frame.to_parquet(temporary, index=False)
    _write_record(provenance | {"rows": len(frame), "sha256": sha256_file(path)}, path)


def read_rows(paths: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """All rows of one or more Parquet files; InputError when a file is missing, truncated or not as it was written."""
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    frames = []
    for path in map(Path, paths):
        sidecar = Path(f"{path}.json")
        try:
            recorded = json.loads(sidecar.read_text())["sha256"]
            if sha256_file(path) != recorded:
                raise ValueError("its content differs from its checksum")
            frames.append(pd.read_parquet(path))
        except FileNotFoundError as error:
            raise InputError(f"{error.filename} is missing; run the workflow to make it.") from error
        except (ValueError, KeyError, TypeError, OSError) as error:  # pyarrow's errors are ValueErrors or OSErrors
            raise InputError(f"{path} is truncated or corrupt ({error}); delete it and run the workflow.") from error
    if not frames:
        raise InputError("no result files were given; check the tier's config.")
    return pd.concat(frames, ignore_index=True)


def valid(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose checks all passed; a marked row is never averaged in."""
    return rows[rows["ok"].fillna(True).astype(bool)] if "ok" in rows else rows


def write_json(content: Any, path: str | Path) -> None:
    """Write JSON atomically, keys as given."""
    with atomic(Path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=1, default=str) + "\n")


def write_table(frame: pd.DataFrame, path: str | Path, provenance: dict[str, Any]) -> None:
    """Write a table as CSV, numbers with six digits, with ``<path>.json`` beside it as :func:`write_rows` does."""
    with atomic(Path(path)) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")
    _write_record(provenance | {"rows": len(frame), "sha256": sha256_file(path)}, path)


def _write_record(record: dict[str, Any], path: str | Path) -> None:
    """Write ``<path>.json``. A file that was made again and came out the same keeps its record, with a new date for the
    workflow, so that committed results do not change where they are made again."""
    sidecar = Path(f"{path}.json")
    with suppress(OSError, ValueError, AttributeError):
        before = sidecar.read_text()
        if _lasting(json.loads(before)) == _lasting(json.loads(json.dumps(record, default=str))):
            write_text(before, sidecar)
            return
    write_json(record, sidecar)


def _lasting(record: dict[str, Any]) -> dict[str, Any]:
    """What a record says of a result, without when, where and by which sources it was made."""
    kept = {key: None if key in CIRCUMSTANCES else value for key, value in record.items()}
    return kept | {"params": {key: value for key, value in record.get("params", {}).items() if key != "code"}}


def checksums(paths: Iterable[str | Path]) -> dict[str, str]:
    """SHA-256 of files by path, for the provenance of what is made from them: of results the recorded one."""
    return {str(path): _recorded(path) or sha256_file(path) for path in paths}


def mixed(paths: Iterable[str | Path]) -> list[str]:
    """A sentence for each file, such as a model's estimators, of which result files were made from different versions.

    Rows of one model and method then belong to different artefacts. Files that say nothing of inputs are passed over.
    """
    made: dict[str, dict[str, list[str]]] = {}
    for path in paths:
        for name, checksum in json.loads(Path(f"{path}.json").read_text()).get("inputs", {}).items():
            made.setdefault(name, {}).setdefault(checksum, []).append(str(path))
    several = {name: found for name, found in made.items() if len(found) > 1}
    return [
        f"{name} was not the same file for all rows: {_apart(found)}; "
        "delete what is not made from the present one and run the workflow."
        for name, found in several.items()
    ]


def _apart(found: dict[str, list[str]]) -> str:
    return ", but ".join(f"{paths[0]} has {checksum[:8]}" for checksum, paths in found.items())


def _recorded(path: str | Path) -> str | None:
    sidecar = Path(f"{path}.json")
    return json.loads(sidecar.read_text())["sha256"] if sidecar.exists() else None


def write_text(content: str, path: str | Path) -> None:
    """Write a text file atomically."""
    with atomic(Path(path)) as temporary:
        temporary.write_text(content)


def config_hash(config: dict[str, Any]) -> str:
    """First 16 hex digits of a SHA-256 over a config with sorted keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]


def hardware(device: str = "cpu") -> str:
    """The device in words: the GPU's name, or the CPU's core count."""
    if device.startswith("cuda"):
        import torch

        return f"one {torch.cuda.get_device_name(device)}"
    return f"{len(os.sched_getaffinity(0))} CPU cores"


def provenance(config: dict[str, Any], device: str = "cpu", **more: Any) -> dict[str, Any]:
    """Where a result comes from: commit, config hash, package, driver and device versions, peak memory, time."""
    import resource

    record = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "config": config_hash(config),
        "python": platform.python_version(),
        "packages": {p: v for p in PACKAGES if (v := _version(p))},
        "hardware": hardware(device),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if device.startswith("cuda"):
        import torch

        record |= {
            "cuda": torch.version.cuda,
            "driver": _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
            "peak_gpu_mib": torch.cuda.max_memory_allocated(device) // 2**20,
        }
    return record | more


def _commit() -> str:
    commit = _run("git", "rev-parse", "HEAD") or "unknown"
    sources = ("--", ":!results", ":!figures")  # committed results change while they are made again
    return f"{commit}+changes" if _run("git", "status", "--porcelain", "--untracked-files=no", *sources) else commit


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
