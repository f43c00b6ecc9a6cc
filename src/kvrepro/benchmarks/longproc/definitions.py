"""LongProc's task HTML to TSV at its three output lengths, as data read from ``tasks.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from kvrepro.errors import unknown

_DATA = yaml.safe_load(resources.files(__package__).joinpath("tasks.yaml").read_text("utf-8"))

TASKS: tuple[str, ...] = tuple(_DATA["tasks"])
SOURCE: Mapping[str, Any] = _DATA["source"]
PROMPT: str = _DATA["prompt"]


@dataclass(frozen=True)
class Task:
    """One length of the output: the published file, the number of its pages, and the tokens that are generated."""

    name: str
    file: str
    items: int
    max_new_tokens: int


@cache
def task(name: str) -> Task:
    """The definition of a task. Raises InputError for an unknown name."""
    if name not in TASKS:
        raise unknown("LongProc task", name, TASKS, "task")
    return Task(name, **_DATA["tasks"][name])
