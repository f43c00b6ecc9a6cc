"""Published data files, where the user has them: JSON lines or Parquet, checked row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.published import all_objects
from kvrepro.benchmarks.scbench import functions
from kvrepro.benchmarks.scbench.definitions import MULTI_TURN, PREFIX, SOURCE, Task
from kvrepro.benchmarks.scbench.definitions import task as definition
from kvrepro.benchmarks.scbench.rows import Row, parse
from kvrepro.benchmarks.scbench.turns import BENCHMARK, example, truncated
from kvrepro.errors import InputError


def find(task: str, path: str | Path) -> list[Path]:
    """The files of a task: ``path`` itself, or in that folder ``scbench_<task>.jsonl`` (also below ``data/``) or
    ``scbench_<task>/*.parquet``, as the hub has them. Raises InputError when there is none."""
    name, path = PREFIX + definition(task).name, Path(path)
    if path.is_file():
        return [path]
    for lines in (path / f"{name}.jsonl", path / "data" / f"{name}.jsonl"):
        if lines.is_file():
            return [lines]
    if parts := sorted((path / name).glob("*.parquet")):
        return parts
    raise InputError(
        f"{path}: holds neither {name}.jsonl nor {name}/*.parquet; download the data set {SOURCE['data']['hub']} and "
        "name its folder."
    )


def read_rows(task: str, path: str | Path) -> list[Row]:
    """All rows of a task. Raises InputError naming file and line for anything that is not the published format."""
    chosen = definition(task)
    return [parse(chosen, data, where) for data, where in all_objects(find(task, path))]


def needles(rows: list[Row]) -> dict[str, list[list[str]]]:
    """Name and code of every function asked for, by repository: the answers that a prediction may be mistaken for."""
    found: dict[str, list[list[str]]] = {}
    for row in rows:
        found.setdefault(row.repo, []).extend([t.name, t.answer] for t in row.turns if t.subtask.metric == "function")
    return found


def load(
    task: str,
    path: str | Path,
    tokenizer: Any,
    limit: int,
    n_items: int | None = None,
    mode: str = MULTI_TURN,
    chat: bool = False,
    max_turns: int | None = None,
) -> list[Example]:
    """Examples of a task from published files, the middle of a context taken out where a turn would pass ``limit``.

    ``max_turns`` keeps the first turns of a row (the official script's default is 5; GateSight asks all). ``info``
    holds "source", "length", "context_tokens" and "truncated" besides what scorers need. Raises InputError for files
    that are missing or of another format, and for a limit that leaves no room for a context.
    """
    chosen = definition(task)
    rows = read_rows(task, path)
    rows = [Row(row.context, row.turns[:max_turns], row.repo, row.lang) for row in rows[:n_items]]
    asked = needles(rows) if chosen.code else {}
    for lang in {row.lang for row in rows if row.lang}:
        functions.require(lang)
    return [_example(chosen, row, item, tokenizer, limit, mode, chat, asked) for item, row in enumerate(rows)]


def _example(
    task: Task, row: Row, item: int, tokenizer: Any, limit: int, mode: str, chat: bool, asked: dict
) -> Example:
    info = {"source": SOURCE["data"]["hub"], "stand_in": False}
    if task.code:
        info["needles"] = asked[row.repo]
    whole = example(task, row, item, 0, tokenizer, mode, chat, info, BENCHMARK)
    try:
        return truncated(whole, task, tokenizer, limit, chat)
    except InputError as error:
        raise InputError(f"{task.name} item {item}: {error}") from error
