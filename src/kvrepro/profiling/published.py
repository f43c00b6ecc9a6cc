"""What the paper published of latency and memory: the values plotted in Figures 8 and 15."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kvrepro.errors import InputError
from kvrepro.profiling.settings import Settings

#: Seconds and bytes to four significant digits, of the authors' figure data (github.com/lashhw/WG-KV-figures, commit
#: 0e1fa86); empty where they ran out of memory. 1K is 1,024 tokens.
FILE = Path("config/published_latency.csv")
KEY = ["model", "task", "n_tokens", "method", "metric", "component"]


def plotted(settings: Settings, path: str | Path = FILE) -> pd.DataFrame:
    """Plotted values of the profile's models, in columns of profile rows; NaN where the authors ran out of memory."""
    try:
        rows = pd.read_csv(path)[[*KEY, "value"]].astype({"n_tokens": int, "value": float})
        if rows.duplicated(KEY).any():
            raise ValueError("a value stands twice")
        if (rows["value"] <= 0).any() or rows.loc[rows["method"] == "wg_kv", "value"].isna().any():
            raise ValueError("a value is missing or not above zero")
        if missing := set(settings.published) - set(rows["model"]):
            raise ValueError(f"{min(missing)} is missing")
        return rows[rows["model"].isin(settings.profile.models)]
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} does not hold the published values ({error}); restore it from the repository."
        ) from error
