"""``aime25``: the problems of AIME 2025 from the user's file, JSON lines or Parquet with problem and answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.example import length as tokens_of
from kvrepro.benchmarks.reasoning.definitions import AIME25
from kvrepro.errors import InputError

TASK = "aime25"
FIELDS = ("problem", "answer")


def problems(path: str | Path) -> list[tuple[str, str]]:
    """Problems with their answers. Raises InputError naming the file, and the line of what is wrong in it."""
    path, found = Path(path), []
    hub = AIME25["source"]["data"]
    try:
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 (byte {error.start}); download {hub} again.") from error
    except (OSError, ValueError) as error:  # pyarrow's errors and those of json are ValueErrors or OSErrors
        raise InputError(f"{path}: cannot be read ({error}); download {hub} again.") from error
    for number, row in enumerate(rows, 1):
        lacking = [field for field in FIELDS if not isinstance(row, dict) or row.get(field) in (None, "")]
        if lacking or not str(row["answer"]).isdecimal():
            what = f"has no {lacking[0]}" if lacking else f"has the answer {row['answer']!r}, which is no whole number"
            raise InputError(f"{path}, row {number}: {what}; take the published file of {hub}.")
        found.append((str(row["problem"]), str(row["answer"])))
    if not found:
        raise InputError(f"{path}: holds no problem; download {hub} again.")
    return found


def load(path: str | Path, items: int, length: int, tokenizer: Any, chat: bool = False) -> list[Example]:
    """The first ``items`` problems; an answer has what its prompt leaves of ``length`` tokens."""
    examples = []
    for item, (problem, answer) in enumerate(problems(path)[:items]):
        context = AIME25["context"].format(problem=problem)

        def example(most: int, context: str = context, answer: str = answer, item: int = item) -> Example:
            asked = Question(AIME25["question"].format(), (answer,), most)
            return Example("reasoning", TASK, item, 0, "", context, (asked,), {"source": AIME25["source"]["data"]})

        used = tokens_of(example(0), tokenizer, chat)
        if used >= length:
            raise InputError(f"aime25 item {item}: its prompt has {used} tokens; raise length above that.")
        examples.append(example(length - used))
    return examples
