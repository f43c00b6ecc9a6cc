"""Reasoning as the registry wants it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.reasoning import aime, registers
from kvrepro.benchmarks.reasoning import score as scores
from kvrepro.benchmarks.reasoning.definitions import TASKS
from kvrepro.benchmarks.registry import Benchmark
from kvrepro.benchmarks.ruler.draws import EVAL
from kvrepro.benchmarks.settings import check_tasks
from kvrepro.errors import InputError

PER_REGISTER = 8  #: tokens of a context for each register, at least
PROBLEM = 32  #: tokens of the shortest problem of AIME, about


def generate(
    settings: Mapping[str, Any], tokenizer: Any, seed: int, chat: bool, lab: bool
) -> Iterator[Sequence[Example]]:
    """Items of each task; a lab model is asked with names that it was not trained on."""
    items, length = settings["items"], settings["length"]
    for task in settings["tasks"]:
        if task == aime.TASK:
            yield aime.load(settings["aime25"], items, length, tokenizer, seed, chat)
        else:
            split = EVAL if lab else None
            yield registers.generate(items, length, settings["registers"], tokenizer, seed, split, chat)


def score(example: Example, question: Question, text: str) -> float | dict[str, float]:
    """The score of the task, and of ``registers`` also the share of right steps."""
    return getattr(scores, example.task)(text, *question.references)


def check(settings: Mapping[str, Any]) -> None:
    """Tasks must exist, and have what they are made of."""
    check_tasks(settings["tasks"], TASKS, "reasoning task", "benchmarks.reasoning.tasks")
    for task in settings["tasks"]:
        if task not in settings:
            what = "the path of the problems" if task == aime.TASK else "the number of registers"
            raise InputError(f"benchmarks.reasoning.{task}: the key is missing; give {what}, or leave the task out.")


def shortest(settings: Mapping[str, Any]) -> int:
    """A context is short: what follows is long."""
    of = {registers.TASK: PER_REGISTER * settings.get("registers", 0), aime.TASK: PROBLEM}
    return min(of[task] for task in settings["tasks"])


def answers(settings: Mapping[str, Any]) -> int:
    """An answer may have half of the length at least."""
    return settings["length"] // 2


def reads(settings: Mapping[str, Any]) -> dict[str, Path | str]:
    """The file of the problems."""
    return {"aime25": Path(settings["aime25"])} if aime.TASK in settings["tasks"] else {}


BENCHMARK = Benchmark(TASKS, generate, score, check, shortest, reads, answers)
