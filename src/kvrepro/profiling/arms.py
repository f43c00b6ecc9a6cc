"""The arm of a job: attention and cache of its method under its protocol."""

from __future__ import annotations

import torch

from kvrepro.profiling.attention import Dense
from kvrepro.profiling.clock import Clock
from kvrepro.profiling.settings import Job, Shape


def make_arm(shape: Shape, job: Job, slots: int, clock: Clock, device: str, dtype: torch.dtype, seed: int):
    return Dense(shape, slots, "flash_attention_2" if job.protocol == "paper" else "cudnn", clock)
