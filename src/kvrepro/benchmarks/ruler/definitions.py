"""The 13 tasks of RULER as data: templates, answer prefixes, metrics and parameters, read from ``templates.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from kvrepro.errors import unknown

_DATA = yaml.safe_load(resources.files(__package__).joinpath("templates.yaml").read_text("utf-8"))

TASKS: tuple[str, ...] = tuple(_DATA["tasks"])
SENTENCES: Mapping[str, Any] = _DATA["sentences"]


@dataclass(frozen=True)
class Task:
    """One task: the quoted texts, what is generated and scored, and its parameters (``options``)."""

    name: str
    family: str
    template: str
    answer_prefix: str
    max_new_tokens: int
    metric: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Wording:
    """A filled template, cut where the context goes.

    The prompt is ``instruction + context + question + answer_prefix``. ``lead`` is a space that the template has before
    the context; the context begins with it, so that a tokenizer sees the space together with the word that follows.
    """

    instruction: str
    lead: str
    question: str
    answer_prefix: str


@cache
def task(name: str) -> Task:
    """The definition of a task. Raises InputError for an unknown name."""
    if name not in TASKS:
        raise unknown("RULER task", name, TASKS, "task")
    own = dict(_DATA["tasks"][name])
    family = own.pop("family")
    shared = dict(_DATA["families"][family])
    quoted = {key: shared.pop(key) for key in ("template", "answer_prefix", "max_new_tokens", "metric")}
    return Task(name=name, family=family, options={**shared, **own}, **quoted)


def wording(task: Task, answers: int = 1, **fields: str | int) -> Wording:
    """The template of ``task`` filled with ``fields``.

    ``answers`` is the number of values asked for. The needle tasks speak in the singular when it is one, by the
    published replacements; the other families ignore it.
    """
    template, prefix = task.template, task.answer_prefix
    if answers == 1 and "singular" in task.options:
        for old, new in task.options["singular"]:
            template, prefix = template.replace(old, new), prefix.replace(old, new)
        fields["type_needle_v"] = str(fields["type_needle_v"]).removesuffix("s")
    before, after = template.split("{context}")
    instruction = before.format(**fields)
    bare = instruction.rstrip(" ")
    return Wording(bare, instruction[len(bare) :], after.format(**fields), prefix.format(**fields))
