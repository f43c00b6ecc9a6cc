"""Rows of the published formats, checked: one question about a context, or one labelled text.

Real files and generated stand-ins go through the same check, so what is scored always has the type its scorer expects.

* passages: ``{"question", "answers", "ctxs": [{"title", "text"}, ...]}``, by choice "id" and "s_pop"
* ranked: ``{"qid", "query", "ctxs": [{"id", "text", "label"}, ...]}``, by choice a "title" of each passage
* story: ``{"document": {"text"}, "question": {"text"}, "answers": [{"text"}, ...]}``
* book: ``{"id", "context", "input", "answer": [...]}``; book_with_options has four "options" besides
* case: ``{"id", "sources": [...], "summary/short"}``
* labelled: a text and its label, by the names of the data set's fields
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvrepro.benchmarks.helmet.definitions import Task
from kvrepro.benchmarks.published import Fields, short
from kvrepro.errors import InputError

OPTIONS = "ABCD"


@dataclass(frozen=True)
class Row:
    """One question. ``key`` tells questions apart, ``context`` is what the prompt shows, ``shown`` the first answer as
    a demonstration gives it, ``relevance`` the labels of ranked passages, ``popularity`` how often PopQA's subject is
    looked up."""

    key: str
    question: str
    answers: tuple[str, ...]
    context: str
    shown: str
    options: str = ""
    relevance: Mapping[str, int] = field(default_factory=dict)
    popularity: float | None = None


@dataclass(frozen=True)
class Labelled:
    """One text of in-context learning; ``label`` is its class, by number or by name."""

    text: str
    label: int | str


def parse(task: Task, data: Any, where: str) -> Row:
    """A row of ``task`` from its JSON object; ``where`` names file and line. Raises InputError, one sentence, for a
    missing or mistyped field, an empty text, and options that do not hold the answer."""
    return _FORMATS[task.format](task, Fields(data, where))


def parse_labelled(task: Task, data: Any, where: str) -> Labelled:
    """A labelled text of ``task``: a JSON object, or a pair as CLINC150's own file has them."""
    if isinstance(data, list):
        if len(data) != 2 or not all(isinstance(part, str) and part.strip() for part in data):
            raise InputError(
                f"{where}: must be a pair of a text and a label, got {short(data)}; take the published file."
            )
        return Labelled(*data)
    row, label = Fields(data, where), task.fields["label"]
    if label not in row.data and (name := task.fields.get("name")) in row.data:
        return Labelled(row.text(task.fields["text"]), row.text(name))
    number = row.get(label, (int, str), "a class")
    number = int(number) if isinstance(number, str) and number.isdigit() else number  # as CSV has them
    if isinstance(number, int) and not 0 <= number < task.classes:
        raise InputError(
            f"{where}: field {label!r} must be below {task.classes}, the classes of {task.name}, got {number}."
        )
    return Labelled(row.text(task.fields["text"]), number)


def _passages(task: Task, row: Fields) -> Row:
    question, answers = row.text("question"), tuple(row.texts("answers"))
    texts = [task.passage.format(title=p.text("title"), text=p.text("text")) for p in _documents(row)]
    popularity = row.get("s_pop", (int, float), "a number") if task.popularity else None
    if popularity is not None and popularity <= 0:
        raise InputError(f"{row.where}: field 's_pop' must be above 0, got {popularity}; take the published file.")
    key = str(row.data.get("id") or question)
    return Row(key, question, answers, "\n\n".join(texts), answers[0], popularity=popularity)


def _ranked(task: Task, row: Fields) -> Row:
    labels, texts = {}, []
    for passage in _documents(row):
        name, label = passage.text("id"), passage.get("label", int, "a whole number")
        if name in labels:
            raise InputError(f"{passage.where}: the ID {name!r} stands twice; take the published file.")
        if label < 0:
            raise InputError(f"{passage.where}: field 'label' must not be negative, got {label}.")
        labels[name] = label
        title = passage.data.get("title")
        quoted = task.passage if title is None else task.titled_passage
        texts.append(quoted.format(id=name, title=title, text=passage.text("text")))
    if not any(labels.values()):
        raise InputError(
            f"{row.where}: no passage has a label above 0, so that no ranking is right; leave the row out."
        )
    gold = " > ".join(sorted(labels, key=lambda name: -labels[name]))
    return Row(row.text("qid"), row.text("query"), (gold,), "\n\n".join(texts), gold, relevance=labels)


def _documents(row: Fields) -> list[Fields]:
    documents = row.get("ctxs", list, "a list of passages")
    if not documents:
        raise InputError(f"{row.where}: field 'ctxs' is empty; a question needs at least one passage.")
    return [Fields(data, f"{row.where}, passage {number}") for number, data in enumerate(documents, 1)]


def _story(task: Task, row: Fields) -> Row:
    def inner(name: str) -> str:
        return Fields(row.get(name, Mapping, "an object with a text"), f"{row.where}, {name}").text("text")

    answers = row.get("answers", list, "a list of objects with a text")
    texts = tuple(Fields(one, f"{row.where}, answer {i}").text("text") for i, one in enumerate(answers, 1))
    if not texts:
        raise InputError(f"{row.where}: field 'answers' is empty; a question needs an answer.")
    question = inner("question")
    return Row(question, question, texts, inner("document"), texts[0])


def _book(task: Task, row: Fields) -> Row:
    answers = tuple(row.texts("answer"))
    question = "" if task.category == "summ" else row.text("input")
    return Row(_identity(row), question, answers, row.text("context"), answers[0].strip())


def _book_with_options(task: Task, row: Fields) -> Row:
    options = row.texts("options")
    if len(options) != len(OPTIONS):
        raise InputError(f"{row.where}: field 'options' must hold {len(OPTIONS)} texts, got {len(options)}.")
    answer = row.texts("answer")[0]
    if answer not in options:
        raise InputError(f"{row.where}: the answer {answer!r} is none of the options {short(options)}.")
    letter = OPTIONS[options.index(answer)]
    listed = "\n".join(f"{name}. {text}" for name, text in zip(OPTIONS, options, strict=True))
    references = (letter, f"{letter}. {answer}")
    return Row(_identity(row), row.text("input"), references, row.text("context"), letter, options=listed)


def _case(task: Task, row: Fields) -> Row:
    summary = row.text("summary/short")
    return Row(_identity(row), "", (summary,), "\n\n".join(row.texts("sources")), summary)


def _identity(row: Fields) -> str:
    return str(row.get("id", (int, str), "a number or a text"))


_FORMATS: dict[str, Callable[[Task, Fields], Row]] = {
    "passages": _passages,
    "ranked": _ranked,
    "story": _story,
    "book": _book,
    "book_with_options": _book_with_options,
    "case": _case,
}
