"""Published data files, where the user has them, and which of their questions and demonstrations are taken.

The choices are the script's: with the run's seed, or one from the hash of a question, by the generators of Python's
random and, for what "datasets" shuffles, NumPy. The files lie as HELMET's archive and the data sets' hub have them; the
places stand in ``tasks.yaml``.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kvrepro.benchmarks.example import Example, length
from kvrepro.benchmarks.fit import largest_fitting
from kvrepro.benchmarks.helmet import icl
from kvrepro.benchmarks.helmet.build import BENCHMARK, cut, example, within
from kvrepro.benchmarks.helmet.definitions import SOURCE, Task
from kvrepro.benchmarks.helmet.definitions import task as definition
from kvrepro.benchmarks.helmet.rows import Labelled, Row, parse, parse_labelled
from kvrepro.benchmarks.published import SUFFIXES, all_objects, json_of, parts, text_of
from kvrepro.errors import InputError

T = TypeVar("T")
Asked = tuple[str, Row, Sequence[Row]]  # context, question, demonstrations


def load(
    task: str,
    path: str | Path,
    tokenizer: Any,
    limit: int,
    n_items: int | None = None,
    seed: int = 42,
    chat: bool = False,
) -> list[Example]:
    """Examples of a task from published files below ``path``, the end of a context taken off where prompt and answer
    would pass ``limit``.

    ``n_items`` are questions (by default as many as published): in retrieval-augmented generation and reranking each
    comes several times, with its passages in other orders; these are one unit, as are questions about one document.
    ``info`` holds "source", "length" and "truncated" besides what scorers need. Raises InputError for files that are
    missing or of another format, and for a limit that the task is not published for.
    """
    chosen, path = definition(task), Path(path)
    items = n_items or chosen.items
    info = {"source": str(path), "stand_in": False}
    made, first = [], {}
    for item, (context, asked, demos) in enumerate(_asked(chosen, path, tokenizer, limit, items, seed, chat)):
        whole = example(chosen, context, asked, demos, item, seed, chat, info, BENCHMARK)
        unit = first.setdefault(context if chosen.reserved else asked.key, item)
        made.append(replace(within(whole, tokenizer, limit, chat), unit=unit))
    return made


def check_length(task: Task, limit: int) -> None:
    """Raise InputError where a task is one of passages, and none are published for a length."""
    if task.category in ("rag", "rerank") and limit not in task.sizes:
        known = ", ".join(map(str, task.sizes))
        raise InputError(
            f"{task.name}: no passages are published for {limit} tokens; set the length to one of {known}."
        )


def _asked(task: Task, path: Path, tokenizer: Any, limit: int, items: int, seed: int, chat: bool) -> Iterator[Asked]:
    if task.category == "icl":
        return _labelled(task, path, tokenizer, limit, items, seed, chat)
    if task.reserved:
        return _documents(task, path, tokenizer, limit, items, seed)
    return _passages(task, path, limit, items, seed)


def shuffled(rows: Sequence[T], seed: int) -> list[T]:
    """``rows`` in the order in which "datasets" shuffles them."""
    return [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]


def seed_of(key: str) -> int:
    """The seed of the draws that belong to a question."""
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2**31


def _passages(task: Task, path: Path, limit: int, items: int, seed: int) -> Iterator[Asked]:
    """Questions with lists of passages, and the demonstrations of each."""
    check_length(task, limit)
    rows, pool = (_rows(task, path, part, limit) for part in ("test", "demos"))
    if task.popularity is not None:
        rows, pool = ([r for r in some if math.log10(r.popularity) < task.popularity] for some in (rows, pool))
    keys = sorted({row.key for row in rows})
    taken = set(random.Random(seed).sample(keys, min(items, len(keys))))
    rows = [row for row in rows if row.key in taken]
    if task.category == "rerank" and len(pool) > 2 * len(rows):
        pool = [row for row in pool if row.key not in taken]
    for row in rows:
        others = [r for r in pool if r.key != row.key] if task.category == "rerank" or task.popularity else pool
        yield row.context, row, _distinct(task, shuffled(others, seed_of(row.key)), path)


def _distinct(task: Task, rows: Sequence[Row], path: Path) -> list[Row]:
    """The first rows that ask different questions, as many as a prompt shows."""
    found = list({row.key: row for row in reversed(rows)}.values())[::-1][: task.shots]
    if len(found) < task.shots:
        raise InputError(f"{path}: holds too few questions for the {task.shots} demonstrations of {task.name}.")
    return found


def _documents(task: Task, path: Path, tokenizer: Any, limit: int, items: int, seed: int) -> Iterator[Asked]:
    """Questions about long documents, which are cut to what the limit leaves them."""
    rows = _rows(task, path, "test", limit)
    pool = _rows(task, path, "demos", limit) if "demos" in task.files else rows

    @cache
    def fitted(text: str) -> tuple[str, int]:
        return cut(text, tokenizer, limit - task.reserved)

    def long(row: Row) -> bool:
        return fitted(row.context)[1] >= task.shortest

    if task.format == "story":
        taken = islice(filter(long, shuffled(rows, seed)), items)
    else:
        kept = list(filter(long, rows))
        taken = (kept if task.format == "case" and len(kept) <= items else shuffled(kept, seed))[:items]
    for row in taken:
        own = seed if pool is rows else seed_of(row.key)
        others = [other for other in pool if pool is not rows or other.key != row.key]
        yield fitted(row.context)[0], row, _distinct(task, shuffled(others, own), path)


def _labelled(task: Task, path: Path, tokenizer: Any, limit: int, items: int, seed: int, chat: bool) -> Iterator[Asked]:
    """Texts to be labelled, each after demonstrations of its own: as many as published for the limit, or as many as
    fit where none are."""
    test, train = _texts(task, path, seed)
    if len({text.label for text in (*test, *train)}) > task.classes:
        raise InputError(
            f"{path}: {task.name} has {task.classes} classes, and these files more; take the published ones."
        )
    if len(test) > items:
        test = icl.balanced(shuffled(test, seed), items, seed)
    for text in test:

        def tokens(shots: int, text: Labelled = text) -> int:
            context, row = icl.question(task, text, train, shots, seed)
            return length(example(task, context, row, (), 0, seed, chat, {}, BENCHMARK), tokenizer, chat)

        shots = task.sizes.get(limit)
        if shots is None:
            found = largest_fitting(tokens, limit, 1, None)
            if found is None:
                raise InputError(f"{task.name}: not one demonstration fits {limit} tokens; raise the length.")
            shots = found[0]
        yield *icl.question(task, text, train, shots, seed), ()


def _texts(task: Task, path: Path, seed: int) -> tuple[list[Labelled], list[Labelled]]:
    """The texts to be labelled, and those of the demonstrations."""
    named = [path / name for name in task.splits.get("files", ())]
    if file := next((file for file in named if file.is_file()), None):
        content = json_of(text_of(file), str(file))
        found = []
        for part in ("test", "demos"):
            pairs = [(pair, name) for name in task.splits[part] for pair in _split(content, name, file)]
            found.append([parse_labelled(task, pair, f"{file}, {name} {i}") for i, (pair, name) in enumerate(pairs, 1)])
        return found[0], found[1]
    test, train = ([parse_labelled(task, *row) for row in _objects(task, path, part, 0)] for part in ("test", "demos"))
    if not task.test_share:
        return test, train
    mixed, n_test = shuffled(test, seed), math.ceil(task.test_share * len(test))
    return mixed[:n_test], mixed[n_test:]


def _split(content: Any, name: str, file: Path) -> list:
    if not isinstance(content, Mapping) or not isinstance(content.get(name), list) or not content[name]:
        raise InputError(f"{file}: the list {name!r} is missing or empty; take the published file.")
    return content[name]


def _rows(task: Task, path: Path, part: str, limit: int) -> list[Row]:
    """Rows of a task. Each of NarrativeQA's has its whole book, and a book has about thirty: they share one text."""
    texts: dict[str, str] = {}
    rows = (parse(task, data, where) for data, where in _objects(task, path, part, limit))
    return [replace(row, context=texts.setdefault(row.context, row.context)) for row in rows]


def _objects(task: Task, path: Path, part: str, limit: int) -> Iterator[tuple[Any, str]]:
    """Rows of the files of a task, one after the other. Of NarrativeQA's demonstrations, whose books are not shown,
    without those; of Multi-LexSum only rows that have the short summary."""
    stem = path / task.files[part].format(size=task.sizes.get(limit))
    if not (files := parts(stem)):
        raise InputError(
            f"{stem}: there is no such file ({', '.join(SUFFIXES)}) for {task.name}; put it there (config/README.md "
            f"says where from; HELMET's archive is {SOURCE['data']})."
        )
    columns = ["question", "answers"] if (task.format, part) == ("story", "demos") else None

    def wanted(data: Any) -> bool:
        return task.format != "case" or not isinstance(data, Mapping) or data.get("summary/short") is not None

    for data, where in all_objects(files, columns, wanted):
        yield data | {"document": {"text": "-"}} if columns and isinstance(data, Mapping) else data, where
