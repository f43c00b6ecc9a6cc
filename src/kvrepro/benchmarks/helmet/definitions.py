"""The fourteen tasks of HELMET that WG-KV uses (Appendix D) as data: prompts, lengths, metrics, from ``tasks.yaml``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from kvrepro.errors import unknown

_DATA = yaml.safe_load(resources.files(__package__).joinpath("tasks.yaml").read_text("utf-8"))

TASKS: tuple[str, ...] = tuple(_DATA["tasks"])
SOURCE: Mapping[str, Any] = _DATA["source"]
OMITTED: str = _DATA["omitted"]
DOWNLOADS: Mapping[str, Mapping[str, str]] = _DATA["downloads"]


@dataclass(frozen=True)
class Task:
    """One task. Of the quoted texts ``prompt`` is the whole, ``demo`` one demonstration, ``demos`` what stands around
    all of them, ``passage`` one document of a list; ``tasks.yaml`` says what the rest is."""

    name: str
    category: str
    prompt: str
    answer_prefix: str
    join: str
    demo: str
    demos: str
    chat: bool
    shots: int
    items: int
    meant_to_stop: bool
    max_new_tokens: int
    metric: str
    format: str
    files: Mapping[str, str]
    passage: str = ""
    titled_passage: str = ""
    judge: str = ""
    popularity: float | None = None
    sizes: Mapping[int, int] = field(default_factory=dict)
    reserved: int = 0
    shortest: int = 0
    classes: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    test_share: float = 0.0
    splits: Mapping[str, Any] = field(default_factory=dict)


@cache
def task(name: str) -> Task:
    """The definition of a task. Raises InputError for an unknown name."""
    if name not in TASKS:
        raise unknown("HELMET task", name, TASKS, "task")
    own = _DATA["tasks"][name]
    return Task(name, **(_DATA["categories"][own["category"]] | own))


def least(name: str) -> float:
    """Percent below which a task counts as not answered: ROUGE gives a tenth to any English text."""
    return 15 if task(name).metric == "rouge_l_f1" else 10


def judged(names: Iterable[str]) -> tuple[str, ...]:
    """Those of some tasks whose scores in the paper come from a judge model, which is not run here."""
    return tuple(name for name in names if name in TASKS and task(name).judge)
