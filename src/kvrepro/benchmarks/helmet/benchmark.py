"""HELMET as the registry wants it: published files where the settings name their place, else stand-ins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.helmet.definitions import DOWNLOADS, TASKS
from kvrepro.benchmarks.helmet.definitions import task as definition
from kvrepro.benchmarks.helmet.generate import generate as generate_task
from kvrepro.benchmarks.helmet.load import check_length, load
from kvrepro.benchmarks.helmet.score import score
from kvrepro.benchmarks.registry import Benchmark
from kvrepro.benchmarks.ruler.draws import EVAL
from kvrepro.benchmarks.ruler.sources import from_settings
from kvrepro.benchmarks.settings import check_prose, check_tasks, corpora_of, least_context

WHERE = "benchmarks.helmet"
AROUND = 256  #: tokens of a question, at most, and of what no longer fits


def generate(
    settings: Mapping[str, Any], tokenizer: Any, seed: int, chat: bool, lab: bool
) -> Iterator[Sequence[Example]]:
    """Items of each task. Settings: "tasks", "length", and by choice "items" (the published numbers), then "data" for
    published files (a folder, or one for each of some tasks) or "fetched" (the folder of those that were downloaded, if
    any), and for stand-ins "sources" ("prose" and "word_count")
    and "most_new_tokens"."""
    length, items, places = settings["length"], settings.get("items"), _places(settings)
    stand_ins = [task for task in settings["tasks"] if task not in places]
    found = from_settings(settings["sources"], tokenizer, EVAL if lab else None) if stand_ins else None
    for task in settings["tasks"]:
        if task in places:
            yield load(task, places[task], tokenizer, length, items, seed, chat)
        else:
            many = items or definition(task).items
            yield generate_task(task, many, length, tokenizer, seed, found, chat, settings.get("most_new_tokens"))


def _places(settings: Mapping[str, Any]) -> dict[str, Path]:
    """The folders of published files, by task: those that "data" names, and that of "fetched" where all files of a task
    lie in it."""
    data, fetched = settings.get("data", {}), settings.get("fetched")
    named = data if isinstance(data, Mapping) else dict.fromkeys(settings["tasks"], data)
    found = {task: fetched for task in settings["tasks"] if fetched and _is_fetched(task, Path(fetched))}
    return {task: Path(folder) for task, folder in (found | named).items()}


def _is_fetched(task: str, folder: Path) -> bool:
    """Whether the files of a task that ``snakemake helmet_data`` fetches lie in a folder, or another that does."""
    files = [name for name in DOWNLOADS if name.startswith(f"{task}/")]
    others = definition(task).splits.get("files", ())
    there = bool(files) and all((folder / name).is_file() for name in files)
    return there or any((folder / name).is_file() for name in others)


def check(settings: Mapping[str, Any]) -> None:
    """Tasks and corpus must exist, contexts must come from somewhere, and published ones be of the length."""
    places = _places(settings)
    for key, names in (("tasks", settings["tasks"]), ("data", places)):
        check_tasks(names, TASKS, "HELMET task", f"{WHERE}.{key}")
    for task in (task for task in settings["tasks"] if task in places):
        check_length(definition(task), settings["length"])
    if missing := [task for task in settings["tasks"] if task not in places]:
        check_prose(settings, f"contexts of {missing[0]}", WHERE)


def shortest(settings: Mapping[str, Any]) -> int:
    """Half the length, or what the longest answer and a question leave."""
    answers = (definition(task).max_new_tokens for task in settings["tasks"])
    return least_context(settings, answers, AROUND, enough=settings["length"] // 2)


def reads(settings: Mapping[str, Any]) -> dict[str, Path | str]:
    """The folders of published files, and the corpora that stand-ins are made of."""
    places = _places(settings)
    whole = isinstance(settings.get("data"), str)
    folders = {"data" if whole else f"data.{task}": path for task, path in places.items()}
    if set(settings["tasks"]) <= set(places):
        return folders
    return folders | corpora_of(settings)


BENCHMARK = Benchmark(TASKS, generate, score, check, shortest, reads)
