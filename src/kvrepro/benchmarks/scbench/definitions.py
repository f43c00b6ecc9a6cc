"""The twelve tasks of SCBench as data: templates, answer prefixes, generation lengths, metrics, from ``tasks.yaml``."""

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
PREFIX = "scbench_"  # task names of the data files

MULTI_TURN, MULTI_REQUEST = MODES = ("multi_turn", "multi_request")


@dataclass(frozen=True)
class Subtask:
    """What is generated for and how it is scored: most tasks have one, the mixed ones two."""

    name: str
    max_new_tokens: int
    metric: str
    label: str


@dataclass(frozen=True)
class Task:
    """One task. ``first`` opens a conversation, ``later`` a further turn, ``question`` one turn by itself."""

    name: str
    first: str
    later: str
    question: str
    context: str
    chat_answer_prefix: str
    first_multi_request: str
    what: Mapping[str, str] | None
    subtasks: Mapping[str, Subtask]

    @property
    def mixed(self) -> bool:
        """Whether a turn names its sub-task."""
        return len(self.subtasks) > 1

    @property
    def code(self) -> bool:
        """Whether functions of a repository are asked for."""
        return "repoqa" in self.subtasks


def bare(name: str) -> str:
    """A task's name without the prefix it has in the data files."""
    return name.removeprefix(PREFIX)


@cache
def task(name: str) -> Task:
    """The definition of a task, with or without the prefix "scbench_". Raises InputError for an unknown name."""
    name = bare(name)
    if name not in TASKS:
        raise unknown("SCBench task", name, TASKS, "task")
    own = _DATA["shared"] | _DATA["tasks"][name]
    before = own["first"].split("{context}")[0]
    return Task(
        name=name,
        first=own["first"],
        later=own["later"],
        question=own["question"],
        context=own.get("context", "text"),
        chat_answer_prefix=own.get("chat_answer_prefix", ""),
        first_multi_request=own.get("first_multi_request", before + "{context}"),
        what=own.get("what"),
        subtasks={sub: Subtask(sub, **fields) for sub, fields in own["subtasks"].items()},
    )


def check_mode(mode: str, where: str = "mode") -> None:
    """Raises InputError unless ``mode`` is one of the two shared-context modes."""
    if mode not in MODES:
        raise unknown("SCBench mode", mode, MODES, where)
