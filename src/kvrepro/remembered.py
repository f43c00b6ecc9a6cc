"""Results of checks that import the whole stack, kept between runs: every job of a workflow reads the Snakefile
again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kvrepro.files import atomic

FOLDER = Path(".snakemake/kvrepro")


def python_files(paths: Iterable[Path | str]) -> list[Path]:
    """The Python files among ``paths`` and in the folders among them."""
    paths = sorted(map(Path, paths))
    return [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def remembered(content: Any, files: Iterable[Path], compute: Callable[[], Any]) -> Any:
    """What ``compute`` gave for ``content`` (both JSON); computed anew when one of ``files`` has another date or size.

    Nothing is kept of a computation that raises.
    """
    stats = ((str(file), file.stat()) for file in files)
    key = json.dumps([content, [(name, s.st_mtime_ns, s.st_size) for name, s in stats]], sort_keys=True)
    path = FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        result = compute()
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(result))
    return result
