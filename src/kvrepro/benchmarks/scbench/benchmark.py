"""SCBench as the registry wants it: published files where the settings name their folder, else stand-ins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.registry import Benchmark
from kvrepro.benchmarks.ruler.draws import EVAL
from kvrepro.benchmarks.scbench.definitions import MULTI_TURN, TASKS, bare, check_mode
from kvrepro.benchmarks.scbench.generate import generate as generate_task
from kvrepro.benchmarks.scbench.load import load
from kvrepro.benchmarks.scbench.score import CORRECTED, OFFICIAL, REVISED
from kvrepro.benchmarks.scbench.score import score as score_answer
from kvrepro.benchmarks.scbench.stand_ins.sources import CODE, from_corpora
from kvrepro.benchmarks.settings import check_prose, check_tasks, corpora_of

WHERE = "benchmarks.scbench"
SHORT_CONTEXT = 16_000  #: tokens; the shortest published contexts, those of many_shot, have more


def generate(
    settings: Mapping[str, Any], tokenizer: Any, seed: int, chat: bool, lab: bool
) -> Iterator[Sequence[Example]]:
    """Contexts of each task. Settings: "tasks", "items", "length", and by choice "mode" (multi_turn) and "turns" (all),
    then for published files "data" (a folder), for stand-ins "sources" ("prose" and "word_count") and
    "most_new_tokens"."""
    length, mode, turns = settings["length"], settings.get("mode", MULTI_TURN), settings.get("turns")
    if data := settings.get("data"):
        for task in settings["tasks"]:
            yield load(task, data, tokenizer, length, settings["items"], mode, chat, turns)
        return
    found = from_corpora(**settings["sources"], split=EVAL if lab else None)
    most = settings.get("most_new_tokens")
    for task in settings["tasks"]:
        yield generate_task(task, settings["items"], length, tokenizer, seed, found, mode, chat, most, turns)


def score(example: Example, question: Question, text: str) -> dict[str, float]:
    """The revised score, which figures show as "score", with the official and the corrected one beside it."""
    names = {"score": REVISED, OFFICIAL: OFFICIAL, CORRECTED: CORRECTED}
    return {metric: score_answer(example, question, text, scorer) for metric, scorer in names.items()}


def check(settings: Mapping[str, Any]) -> None:
    """Tasks, mode and corpus must exist, and contexts must come from somewhere."""
    check_tasks(map(bare, settings["tasks"]), TASKS, "SCBench task", f"{WHERE}.tasks")
    check_mode(settings.get("mode", MULTI_TURN), f"{WHERE}.mode")
    if not settings.get("data"):
        check_prose(settings, "contexts", WHERE)


def shortest(settings: Mapping[str, Any]) -> int:
    """A quarter of the length, as histories and answers may take the rest, or what published contexts have at least."""
    return min(settings["length"] // 4, SHORT_CONTEXT)


def reads(settings: Mapping[str, Any]) -> dict[str, Path | str]:
    """The folder of published files, or the corpora that stand-ins are made of."""
    return {"data": Path(data)} if (data := settings.get("data")) else corpora_of(settings, CODE)


BENCHMARK = Benchmark(TASKS, generate, score, check, shortest, reads)
