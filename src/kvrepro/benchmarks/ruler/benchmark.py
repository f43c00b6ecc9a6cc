"""RULER as the registry wants it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.registry import Benchmark
from kvrepro.benchmarks.ruler import sources
from kvrepro.benchmarks.ruler.definitions import TASKS
from kvrepro.benchmarks.ruler.draws import EVAL
from kvrepro.benchmarks.ruler.generate import generate as generate_task
from kvrepro.benchmarks.ruler.score import score as score_answer
from kvrepro.benchmarks.settings import check_tasks
from kvrepro.data import corpora
from kvrepro.errors import InputError, unknown

AROUND = 256  #: tokens of a prompt that are question and answer, at most


def generate(
    settings: Mapping[str, Any], tokenizer: Any, seed: int, chat: bool, lab: bool
) -> Iterator[Sequence[Example]]:
    """Items of each task; a lab model is asked for strings that it was not trained on."""
    found = sources.from_settings(settings["sources"], tokenizer, split=EVAL if lab else None)
    for task in settings["tasks"]:
        yield generate_task(task, settings["items"], settings["length"], tokenizer, seed, found, chat)


def score(example: Example, question: Question, text: str) -> float:
    """The task's official metric."""
    return score_answer(example.task, text, question.references)


def check(settings: Mapping[str, Any]) -> None:
    """Tasks and corpora must exist, and there must be a haystack."""
    check_tasks(settings["tasks"], TASKS, "RULER task", "benchmarks.ruler.tasks")
    prose = settings["sources"].get("prose")
    if prose is not None and prose not in corpora.names():
        raise unknown("corpus", prose, corpora.names(), "benchmarks.ruler.sources.prose")
    if prose is None and "essays" not in settings["sources"]:
        raise InputError("benchmarks.ruler.sources: there is no haystack; give prose or essays.")


def reads(settings: Mapping[str, Any]) -> dict[str, Path | str]:
    """Official files, the corpus of the haystack, and all corpora of the repository where words are counted over
    them."""
    given = settings["sources"]
    files = {f"sources.{key}": Path(given[key]) for key in sources.OFFICIAL_FILES if given.get(key)}
    names = corpora.names() if given.get("word_count") else []
    return files | {name: name for name in sorted({*names, *([given["prose"]] if given.get("prose") else [])})}


BENCHMARK = Benchmark(TASKS, generate, score, check, lambda settings: settings["length"] - AROUND, reads)
