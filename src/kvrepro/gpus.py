"""Which GPU of a node a job works on: where a node has several, the one that has the fewest jobs of this folder."""

from __future__ import annotations

import fcntl
from itertools import count
from pathlib import Path
from typing import IO

FOLDER = Path("build/gpus")


def place(folder: Path = FOLDER) -> IO[str] | None:
    """Make the GPU with the fewest jobs the current device. The job has its place as long as the file is open that is
    returned, and gives it back when it ends, however it ends; None where there are not two GPUs to choose from.

    A cluster's scheduler shows a job its own GPUs only, so that there is nothing to choose there.
    """
    import torch

    found = torch.cuda.device_count()
    if found < 2:
        return None
    gpu, taken = take(found, folder)
    torch.cuda.set_device(gpu)
    return taken


def take(number: int, folder: Path) -> tuple[int, IO[str]]:
    """The GPU, of ``number``, on which the lowest place is free, and the file that is locked for it."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in count():
        for gpu in range(number):
            file = (folder / f"{gpu}-{row}.lock").open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            return gpu, file
    raise AssertionError  # there is always a higher place
