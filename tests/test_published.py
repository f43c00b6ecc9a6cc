"""Published files: rows are read as they are asked for, and what is wrong with a file is one sentence."""

from __future__ import annotations

import json
import tracemalloc
from importlib import import_module

import pandas as pd
import pytest
from helmet_tools import story, write

from kvrepro.benchmarks.helmet.definitions import task as definition
from kvrepro.benchmarks.published import objects, text_of
from kvrepro.errors import InputError

ROWS, SIZE = 200, 100_000


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_large_file_is_never_in_memory_as_a_whole(suffix, tmp_path):
    path = tmp_path / f"rows.{suffix}"
    rows = [{"n": n, "text": f"{n} " * (SIZE // len(f"{n} "))} for n in range(ROWS)]
    if suffix == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    del rows
    tracemalloc.start()
    try:
        read = [(row["n"], len(row["text"]) > SIZE * 0.9, where) for row, where in objects(path)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [n for n, _, _ in read] == list(range(ROWS)) and all(whole for _, whole, _ in read)
    assert read[-1][2] == f"{path}, {'row' if suffix == 'parquet' else 'line'} {ROWS}"
    assert peak < ROWS * SIZE / 4


def test_questions_about_one_book_hold_it_once(tmp_path):
    write(tmp_path, "narrativeqa/test", [story(n % 2, 300) | {"question": {"text": f"Who {n}?"}} for n in range(6)])
    rows = import_module("kvrepro.benchmarks.helmet.load")._rows(definition("narrativeqa"), tmp_path, "test", 8192)
    assert [row.question for row in rows] == [f"Who {n}?" for n in range(6)]
    assert len({id(row.context) for row in rows}) == 2


def test_the_byte_that_is_not_utf_8_is_that_of_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    rows = objects(path)
    assert next(rows)[0] == {"a": 1}
    for read in (lambda: next(rows), lambda: text_of(path)):
        with pytest.raises(InputError, match=r"not UTF-8 \(byte 16\)"):
            read()
