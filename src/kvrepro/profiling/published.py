"""What the paper published of latency and memory, as the authors' figure data have it, where a user has them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kvrepro.errors import InputError
from kvrepro.profiling.settings import Settings

FILES = {"prefill": ("perf_1.csv", "latency", 1.0), "decode": ("perf_2.csv", "latency", 1e-3)}
MEMORY = ("perf_3.csv", "size", 2.0**30)
COMPONENTS = {
    "Attention": "attention",
    "Non-Attention": "non_attention",
    "Model Weights": "weights",
    "KV Cache": "cache",
}
METHODS = {"Full": "full", "WG-KV": "wg_kv"}
COLUMNS = ["model", "task", "n_tokens", "method", "metric", "component", "value"]


def figure_data(settings: Settings) -> pd.DataFrame:
    """The plotted values of Figures 8 and 15 in seconds and bytes, in columns of profile rows; empty without a folder.

    NaN where the authors ran out of memory.
    """
    folder = Path(settings.figure_data["folder"])
    parts = [
        _read(folder / settings.figure_data[model] / file, column, scale, model, phase, metric)
        for model in settings.profile.models
        if model in settings.figure_data and folder.exists()
        for phase, metric, (file, column, scale) in [
            *((phase, "seconds", source) for phase, source in FILES.items()),
            ("decode", "bytes", MEMORY),
        ]
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def _read(path: Path, column: str, scale: float, model: str, phase: str, metric: str) -> pd.DataFrame:
    try:
        raw = pd.read_csv(path)
        return pd.DataFrame(
            {
                "model": model,
                "task": phase,
                "n_tokens": raw["tokens"].str.removesuffix("K").astype(int) * 1024,
                "method": raw["method"].map(METHODS),
                "metric": metric,
                "component": raw["component"].map(COMPONENTS),
                "value": raw[column] * scale,
            }
        )
    except (OSError, KeyError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is not the authors' figure data ({error}); fetch it again or remove its folder."
        ) from error
