"""The configuration of one lab model's training, read from ``config/lab/<name>.yaml``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path

from kvrepro import yamlfile
from kvrepro.errors import InputError, unknown


@dataclass(frozen=True)
class Stage:
    """What the rows hold up to the fraction ``until`` of a part.

    ``lengths`` maps a row length in tokens to the share of steps that use it; ``plain`` is the share of rows of plain
    text, ``helper`` that of key-value lists among the samples of the other rows, ``tasks`` the weights of the benchmark
    tasks among the rest, and ``longest_sample`` bounds a sample in tokens (0: only by the row).
    """

    until: float
    lengths: dict[int, float]
    plain: float
    helper: float
    tasks: dict[str, float]
    longest_sample: int = 0


@dataclass(frozen=True)
class Part:
    """One schedule. It begins with the weights of the part before, rounded to bf16, and a fresh optimiser.

    ``list_word_tokens`` are the tokens of every list word of cwe (0: any number); ``seed_offset`` is added to the run's
    seed for the batches.
    """

    total_steps: int
    learning_rate: float
    final_learning_rate: float
    warmup_steps: int
    stages: tuple[Stage, ...]
    list_word_tokens: int = 0
    seed_offset: int = 0

    def stage(self, step: int) -> Stage:
        """The stage of a step."""
        fraction = step / self.total_steps
        return next(s for s in self.stages if fraction < s.until or s is self.stages[-1])

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, then linear from the first to the final rate."""
        fraction = step / self.total_steps
        decayed = self.learning_rate + (self.final_learning_rate - self.learning_rate) * fraction
        return decayed * min(1.0, (step + 1) / self.warmup_steps)


@dataclass(frozen=True)
class LabConfig:
    """Model, optimiser and parts of one lab model; every field is a key of the file (see its comments).

    ``start`` is a model directory whose weights the first part begins with; random ones where it is empty.
    """

    name: str
    model: dict
    batch_tokens: int
    weight_decay: float
    betas: tuple[float, float]
    clip: float
    text_weight: float
    log_every: int
    checkpoint_seconds: float
    check_every: int
    check_items: int
    check_lengths: tuple[int, ...]
    parts: tuple[Part, ...]
    start: str = ""

    @property
    def sha256(self) -> str:
        """Hash of everything that determines the run, so that a checkpoint is never continued with another config."""
        said = {key: value for key, value in asdict(self).items() if key != "start" or value}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def tasks(self) -> set[str]:
        """The tasks that rows of some part hold."""
        return {task for part in self.parts for stage in part.stages for task in stage.tasks}


def load_config(path: str | Path) -> LabConfig:
    """Reads and checks a lab config, which may extend another one by parts, or begin with the weights of its model
    (``start``) and leave its parts out; an unknown, missing or impossible key is an InputError that names it."""
    raw = yamlfile.mapping(path, "see config/lab")
    if (base := raw.pop("extends", None)) is not None:  # the parts of another file go before
        before = yamlfile.mapping(Path(path).with_name(f"{base}.yaml"), "name a file of config/lab")
        done = [] if "start" in raw else before.get("parts", [])
        raw = before | raw | {"parts": done + raw.get("parts", [])}
    raw.pop("task_weights", None)  # a place for YAML anchors
    parts = tuple(_part(part, f"{path}: parts[{i}]") for i, part in enumerate(raw.pop("parts", [])))
    config = _build(LabConfig, {**raw, "parts": parts}, str(path))
    if not parts:
        raise InputError(f"{path}: parts is empty; give at least one part.")
    for length in (n for part in parts for stage in part.stages for n in stage.lengths):
        if length % 64 or config.batch_tokens % length:
            raise InputError(f"{path}: row length {length} must be a multiple of 64 that divides batch_tokens.")
    return config


def _part(raw: dict, where: str) -> Part:
    stages = tuple(_build(Stage, s, f"{where}: stages[{i}]") for i, s in enumerate(raw.get("stages", [])))
    if not stages or stages[-1].until != 1 or any(a.until >= b.until for a, b in pairwise(stages)):
        raise InputError(f"{where}: stages must have rising 'until' values that end with 1.")
    return _build(Part, {**raw, "stages": stages}, where)


def _build(kind, values: dict, where: str):
    names = [f.name for f in fields(kind)]
    for key in values:
        if key not in names:
            raise unknown("key", key, names, where)
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{where}: {str(error).replace('__init__() missing', 'missing').split('.')[-1]}.") from error
