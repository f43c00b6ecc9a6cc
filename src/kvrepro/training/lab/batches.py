"""Training batches, each a pure function of (config, part, data, seed, step), made by worker processes ahead of time.

A run that is resumed at a step therefore sees the batches it would have seen, whatever the number of workers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from kvrepro.training.lab.config import LabConfig, Part
from kvrepro.training.lab.rows import RowMaker


def make_batch(config: LabConfig, part: Part, maker: RowMaker, seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids int32 and weight codes uint8, both ``[rows, length + 1]``, of one step of a part (codes: see
    ``rows``)."""
    rng = random.Random(f"lab {config.name} {seed + part.seed_offset} {step}")
    stage = part.stage(step)
    length = rng.choices(list(stage.lengths), list(stage.lengths.values()))[0]
    rows = [maker.row(rng, length + 1, stage) for _ in range(config.batch_tokens // length)]
    return np.array([ids for ids, _ in rows], np.int32), np.array([codes for _, codes in rows], np.uint8)


class Batches(Dataset):
    """The batches of a part, indexed by step; the texts are read when a worker makes its first batch."""

    def __init__(self, config: LabConfig, part: Part, data: Path, seed: int):
        self.config, self.part, self.data, self.seed = config, part, data, seed

    @cached_property
    def maker(self) -> RowMaker:
        """Made once a process."""
        torch.set_num_threads(1)
        return RowMaker.load(self.data, self.part.list_word_tokens)

    def __len__(self) -> int:
        return self.part.total_steps

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        return make_batch(self.config, self.part, self.maker, self.seed, step)


def _as_is(batch):
    return batch  # arrays travel by pipe: a batch has 160 KB, and no shared memory is needed


def batches(
    config: LabConfig, part: Part, data: Path, seed: int, start: int, workers: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of the steps of a part from ``start`` on, in order, made by ``workers`` processes (0: in this one)."""
    loader = DataLoader(
        Batches(config, part, data, seed),
        batch_size=None,
        sampler=range(start, part.total_steps),
        num_workers=workers,
        collate_fn=_as_is,
        prefetch_factor=8 if workers else None,
        multiprocessing_context="spawn" if workers else None,
    )
    return iter(loader)
