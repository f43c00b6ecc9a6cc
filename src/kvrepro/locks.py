"""Remove the lock that a killed Snakemake left behind: ``python -m kvrepro.locks``, before a run from the Makefile.

A lock is stale when no process of this machine runs Snakemake in this directory. Where the directory is shared with
other machines, use ``snakemake --unlock`` yourself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

LOCKS = Path(".snakemake/locks")


def held(directory: Path) -> bool:
    """Whether a process other than this one runs Snakemake in ``directory``."""
    for process in psutil.process_iter():
        try:
            runs = any(part.endswith("snakemake") for part in process.cmdline())
            if runs and process.pid != psutil.Process().pid and Path(process.cwd()) == directory:
                return True
        except (psutil.Error, OSError):
            continue
    return False


def main() -> None:
    """Remove a stale lock of the working directory."""
    if LOCKS.exists() and any(LOCKS.iterdir()) and not held(Path.cwd()):
        shutil.rmtree(LOCKS)


if __name__ == "__main__":
    main()
