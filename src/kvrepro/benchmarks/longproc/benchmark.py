"""LongProc as the registry wants it: published pages where the settings name their folder, else stand-ins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.longproc.definitions import TASKS
from kvrepro.benchmarks.longproc.definitions import task as definition
from kvrepro.benchmarks.longproc.generate import generate as generate_task
from kvrepro.benchmarks.longproc.load import load
from kvrepro.benchmarks.longproc.score import score
from kvrepro.benchmarks.registry import Benchmark
from kvrepro.benchmarks.ruler.draws import EVAL
from kvrepro.benchmarks.ruler.sources import from_settings
from kvrepro.benchmarks.settings import check_prose, check_tasks, corpora_of, least_context

WHERE = "benchmarks.longproc"
AROUND = 512  #: tokens of a question, at most, and of what no longer fits


def generate(
    settings: Mapping[str, Any], tokenizer: Any, seed: int, chat: bool, lab: bool
) -> Iterator[Sequence[Example]]:
    """Pages of each task. Settings: "tasks", "length", and by choice "items" (all that are published), then for
    published files "data" (a folder), for stand-ins "sources" ("prose" and "word_count") and "most_new_tokens"."""
    length, items = settings["length"], settings.get("items")
    if data := settings.get("data"):
        for task in settings["tasks"]:
            yield load(task, data, tokenizer, length, items, seed, chat)
        return
    found = from_settings(settings["sources"], tokenizer, split=EVAL if lab else None)
    for task in settings["tasks"]:
        many = items or definition(task).items
        yield generate_task(task, many, length, tokenizer, seed, found, chat, settings.get("most_new_tokens"))


def check(settings: Mapping[str, Any]) -> None:
    """Tasks and corpus must exist, and pages must come from somewhere."""
    check_tasks(settings["tasks"], TASKS, "LongProc task", f"{WHERE}.tasks")
    if not settings.get("data"):
        check_prose(settings, "pages", WHERE)


def shortest(settings: Mapping[str, Any]) -> int:
    """What the longest answer and a question leave of a length, or a page of a thousand tokens."""
    answers = (definition(task).max_new_tokens for task in settings["tasks"])
    return least_context(settings, answers, AROUND, enough=1000)


def reads(settings: Mapping[str, Any]) -> dict[str, Path | str]:
    """The folder of published files, or the corpora that stand-ins are made of."""
    return {"data": Path(data)} if (data := settings.get("data")) else corpora_of(settings)


BENCHMARK = Benchmark(TASKS, generate, score, check, shortest, reads)
