"""Rows of the published format, checked: one context and its turns.

Real files and generated stand-ins go through the same check, so what is scored always has the type its scorer expects.
A row is ``{"context": ..., "multi_turns": [{"input": ..., "answer": ...}, ...]}`` and, by task: ``options`` of a turn
(choice_eng), ``name`` of a turn and ``repo``, ``lang`` of the row (repoqa), ``task`` of a turn (the two mixed tasks).
vt has its text in ``input`` instead of ``context``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvrepro.benchmarks.published import Fields, short
from kvrepro.benchmarks.scbench.definitions import PREFIX, Subtask, Task, bare
from kvrepro.errors import InputError

LANGUAGES = ("python", "java", "typescript", "rust", "cpp", "go")
OPTIONS = "ABCD"

Label = str | int | float | list[str]


@dataclass(frozen=True)
class Turn:
    """One question. ``answer`` is what the history shows, ``label`` what the scorer gets, as the official code does."""

    subtask: Subtask
    text: str
    answer: str
    label: Label
    references: tuple[str, ...]
    options: tuple[str, ...] = ()
    name: str = ""  # of the function asked for


@dataclass(frozen=True)
class Row:
    """One context with its turns; ``repo`` and ``lang`` of the code tasks."""

    context: str
    turns: tuple[Turn, ...]
    repo: str = ""
    lang: str = ""


def parse(task: Task, data: Any, where: str) -> Row:
    """A row of ``task`` from its JSON object; ``where`` names file and line.

    Raises InputError, one sentence, for a missing or mistyped field, an empty answer, a list written as a string, an
    unknown sub-task or language, and options that do not hold the answer.
    """
    row = Fields(data, where)
    field = "input" if task.name == "vt" and "context" not in row.data else "context"
    if task.context == "numbers":
        numbers = row.get(field, list, "a list of numbers")
        if not numbers or not all(_number(entry) for entry in numbers):
            raise InputError(f"{where}: field {field!r} must be a list of numbers, got {short(numbers)}.")
        context = str(numbers)
    else:
        context = row.text(field)
    turns = row.get("multi_turns", list, "a list of turns")
    if not turns:
        raise InputError(f"{where}: field 'multi_turns' is empty; a context needs at least one question.")
    lang = row.text("lang") if task.code else ""
    if lang and lang not in LANGUAGES:
        raise InputError(f"{where}: language {lang!r} is unknown; known are {', '.join(LANGUAGES)}.")
    return Row(
        context=context,
        turns=tuple(_turn(task, turn, f"{where}, turn {number}") for number, turn in enumerate(turns, 1)),
        repo=row.text("repo") if task.code else "",
        lang=lang,
    )


def _turn(task: Task, data: Any, where: str) -> Turn:
    turn = Fields(data, where)
    subtask = next(iter(task.subtasks.values()))
    if task.mixed:
        name = bare(turn.text("task"))
        if name not in task.subtasks:
            known = ", ".join(PREFIX + sub for sub in task.subtasks)
            raise InputError(f"{where}: sub-task {name!r} is unknown; {task.name} has {known}.")
        subtask = task.subtasks[name]
    text = turn.text("input")
    if task.what and not re.search(task.what["pattern"], text):
        raise InputError(
            f"{where}: field 'input' must say \"The ... is\", as the published questions do; got {text!r}."
        )
    options: tuple[str, ...] = ()
    if subtask.label == "option":
        options = tuple(turn.texts("options"))
        if len(options) != len(OPTIONS):
            raise InputError(f"{where}: field 'options' must hold {len(OPTIONS)} texts, got {len(options)}.")
    label = _label(subtask, turn, options)
    return Turn(
        subtask=subtask,
        text=text,
        answer=label[0] if subtask.label == "text_or_texts" and isinstance(label, list) else str(turn.data["answer"]),
        label=label,
        references=tuple(label) if isinstance(label, list) else (str(label),),
        options=options,
        name=turn.text("name") if subtask.metric == "function" else "",
    )


def _label(subtask: Subtask, turn: Fields, options: Sequence[str]) -> Label:
    """The label as the official code hands it to the scorer."""
    kind = subtask.label
    if kind == "number":
        return turn.get("answer", (int, float), "a number")
    if kind == "texts":
        return turn.texts("answer")
    if kind == "text_or_texts" and isinstance(turn.data.get("answer"), list):
        return turn.texts("answer")
    answer = turn.text("answer")
    if _list_as_string(answer):
        raise InputError(
            f"{turn.where}: field 'answer' is a list written as a string ({short(answer)}); store it as a JSON list "
            "or as one text."
        )
    if kind == "option":
        if answer not in options:
            raise InputError(f"{turn.where}: the answer {answer!r} is none of the options {short(list(options))}.")
        return [answer, OPTIONS[options.index(answer)]]
    return [answer] if kind == "one_text" else answer


def _list_as_string(text: str) -> bool:
    if not (text.lstrip().startswith("[") and text.rstrip().endswith("]")):
        return False
    try:
        return isinstance(ast.literal_eval(text.strip()), list)
    except (ValueError, SyntaxError):
        return False


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
