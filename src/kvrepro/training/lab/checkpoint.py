"""The state of a training run on disk: weights, optimiser, part, step and loss curve, one file."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from kvrepro.errors import InputError
from kvrepro.training.lab.config import LabConfig

FILE = "checkpoint.pt"


def save(run: Path, config: LabConfig, seed: int, part: int, step: int, model, optimizer, curve: list[dict]) -> None:
    """Writes ``run/checkpoint.pt``, ``step`` steps into part number ``part`` (from 0).

    A kill at any moment leaves the old file or the new one.
    """
    run.mkdir(parents=True, exist_ok=True)
    state = {
        "config": config.sha256,
        "seed": seed,
        "part": part,
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "curve": curve,
    }
    temporary = run / (FILE + ".tmp")
    torch.save(state, temporary)
    os.replace(temporary, run / FILE)


def load(run: Path, config: LabConfig, seed: int | None = None) -> dict | None:
    """The saved state on the CPU, or None where there is none; InputError when it belongs to another run."""
    path = run / FILE
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"{path}: the checkpoint cannot be read ({error}); delete it to train from the start."
        ) from error
    if state["config"] != config.sha256 or (seed is not None and state["seed"] != seed):
        raise InputError(f"{path}: the checkpoint is of another config or seed; delete it or choose another --out.")
    return state
