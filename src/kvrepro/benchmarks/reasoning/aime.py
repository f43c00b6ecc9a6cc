"""``aime25``: the problems of AIME 2025 from the user's file, JSON lines or Parquet with problem and answer."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example, Question, Sampling
from kvrepro.benchmarks.example import length as tokens_of
from kvrepro.benchmarks.published import Fields, objects
from kvrepro.benchmarks.reasoning.definitions import AIME25
from kvrepro.errors import InputError

TASK = "aime25"


def problems(path: str | Path) -> list[tuple[str, str]]:
    """Problems with their answers. Raises InputError naming the file, and the line of what is wrong in it."""
    found = []
    for row, where in objects(Path(path)):
        fields = Fields(row, where)
        answer = str(fields.get("answer", (str, int), "a whole number"))
        if not answer.isdecimal():
            raise InputError(
                f"{where}: field 'answer' is {answer!r}, which is no whole number; take the published file."
            )
        found.append((fields.text("problem"), answer))
    if not found:
        raise InputError(f"{path}: holds no problem; download {AIME25['source']['data']} again.")
    return found


def load(path: str | Path, items: int, length: int, tokenizer: Any, seed: int, chat: bool = False) -> list[Example]:
    """The first ``items`` problems; an answer has what its prompt leaves of ``length`` tokens, and is sampled by draws
    of the item's own."""
    examples = []
    for item, (problem, answer) in enumerate(problems(path)[:items]):
        own = random.Random(f"{seed}:{TASK}:{item}").getrandbits(63)
        asked = Question(AIME25["question"].format(), (answer,), 0, sampling=Sampling(**AIME25["sampling"], seed=own))
        context, source = AIME25["context"].format(problem=problem), {"source": AIME25["source"]["data"]}
        example = Example("reasoning", TASK, item, seed, "", context, (asked,), source)
        used = tokens_of(example, tokenizer, chat)
        if used >= length:
            raise InputError(f"aime25 item {item}: its prompt has {used} tokens; raise length above that.")
        examples.append(replace(example, questions=(replace(asked, max_new_tokens=length - used),)))
    return examples
