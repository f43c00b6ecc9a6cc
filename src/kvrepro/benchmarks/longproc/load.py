"""The published files, where the user has them: a list of pages a task, and the pages beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.helmet.build import within
from kvrepro.benchmarks.helmet.load import shuffled
from kvrepro.benchmarks.longproc.definitions import SOURCE
from kvrepro.benchmarks.longproc.definitions import task as definition
from kvrepro.benchmarks.longproc.pages import BENCHMARK, example, parse
from kvrepro.benchmarks.published import json_of, text_of
from kvrepro.errors import InputError

FOLDER = "html_to_tsv"


def load(
    task: str,
    path: str | Path,
    tokenizer: Any,
    limit: int,
    n_items: int | None = None,
    seed: int = 42,
    chat: bool = False,
) -> list[Example]:
    """Examples of a task from the folder ``data`` of LongProc, the end of a page taken off where prompt and answer
    would pass ``limit``: all pages, or ``n_items`` drawn as HELMET draws them.

    ``info`` holds "source", "length" and "truncated". Raises InputError for files that are missing or of another
    format, and for a limit that leaves no room for a page.
    """
    chosen, folder = definition(task), Path(path) / FOLDER
    listed = folder / f"{chosen.file}.json"
    if not listed.is_file():
        raise InputError(f"{listed}: there is no such file; copy LongProc's folder data there ({SOURCE['data']}).")
    content = json_of(text_of(listed), str(listed))
    if not isinstance(content, list) or not content:
        raise InputError(f"{listed}: is no list of pages; take the published file.")
    pages = [parse(data, f"{listed}, entry {number}") for number, data in enumerate(content, 1)]
    if n_items is not None and n_items < len(pages):
        pages = shuffled(pages, seed)[:n_items]
    made, first = [], {}
    for item, page in enumerate(pages):
        info = {"source": SOURCE["repository"], "stand_in": False}
        whole = example(chosen, page, text_of(folder / page.path), item, seed, info, BENCHMARK)
        made.append(replace(within(whole, tokenizer, limit, chat), unit=first.setdefault(page.path, item)))
    return made
