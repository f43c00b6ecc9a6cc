"""Long evaluations in parts, so that a job that was killed goes on where it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from kvrepro.benchmarks.example import Example
from kvrepro.files import atomic

TOGETHER = 8  #: examples whose rows are kept at a time


def resumed(
    folder: Path, examples: Sequence[Example], run: Callable[[Sequence[Example]], Iterable[dict[str, Any]]], shown: str
) -> pd.DataFrame:
    """Rows of all ``examples``, in their order: those that an earlier call left in ``folder`` and, from ``run``, the
    others. ``folder`` belongs to this very evaluation; :func:`finished` removes it once the rows are safe. ``shown``
    names the progress bar."""
    parts = []
    with tqdm(total=len(examples), desc=shown, unit="example") as bar:
        for first in range(0, len(examples), TOGETHER):
            some, path = examples[first : first + TOGETHER], folder / f"{first}.parquet"
            rows = _read(path, some)
            if rows is None:
                rows = pd.DataFrame(list(run(some)))
                with atomic(path) as temporary:
                    rows.to_parquet(temporary, index=False)
            parts.append(rows)
            bar.update(len(some))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _read(path: Path, examples: Sequence[Example]) -> pd.DataFrame | None:
    """The rows of a part; None where there is none, or one that cannot be read or is of other examples."""
    try:
        rows = pd.read_parquet(path)
    except (OSError, ValueError):  # pyarrow's errors are among these
        return None
    return rows if set(zip(rows["task"], rows["item"], strict=True)) == {(e.task, e.item) for e in examples} else None


def finished(folder: Path) -> None:
    """Remove the parts: their rows are in the result."""
    shutil.rmtree(folder, ignore_errors=True)
