"""What the SCBench tests share: small sources, and rows of the published format for every task."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from ruler_tools import prose, tokenizer, words

from kvrepro.benchmarks import scbench
from kvrepro.benchmarks.scbench.stand_ins.sources import Sources, documented, functions_of

LIBRARY = "\n\n".join(
    f'def part_{i}(value):\n    """Return the part number {i} of a value. More."""\n    total = value * {i * 37}\n'
    f"    total += {i}\n    return total"
    for i in range(300)
)


@functools.cache
def sources(split: str | None = "eval") -> Sources:
    functions = functions_of([LIBRARY, "def broken(:"])
    return Sources(words(), prose(), tuple(documented(functions)[:20]), tuple(functions[20:]), split)


def make(task, tokens=2500, n=2, seed=42, **options):
    return scbench.generate(task, n, tokens, tokenizer(), seed, sources(), most_new_tokens=60, **options)


CODE = "def add(a, b):\n    total = a + b\n    return total"
CHOICE = {"input": "Who?", "answer": "Ann", "options": ["Bob", "Ann", "Cid", "Dee"]}
FUNCTION = {"input": "Adds two numbers.", "answer": CODE, "name": "add"}

#: A row of every task as the published files hold it.
ROWS = {
    "kv": {
        "context": '{"k1": "v1"}',
        "multi_turns": [{"input": "k1?", "answer": "v1"}, {"input": "k2?", "answer": "v2"}],
    },
    "prefix_suffix": {"context": "abc", "multi_turns": [{"input": "a?c", "answer": "abc"}]},
    "vt": {"input": "VAR A = 1", "multi_turns": [{"input": "1?", "answer": ["A", "B"]}]},
    "repoqa": {"context": CODE, "repo": "r", "lang": "python", "multi_turns": [FUNCTION]},
    "qa_eng": {"context": "A book.", "multi_turns": [{"input": "Who {x}?", "answer": "Ann"}]},
    "qa_chn": {"context": "一本书。", "multi_turns": [{"input": "谁？", "answer": "王安"}]},
    "choice_eng": {"context": "A book.", "multi_turns": [CHOICE, CHOICE | {"answer": "Dee"}]},
    "many_shot": {"context": "Q A", "task": "t", "multi_turns": [{"input": "Q", "answer": "(A)"}]},
    "mf": {
        "context": [3, 1, 2],
        "multi_turns": [
            {"input": "The largest number of the list is", "answer": 3},
            {"input": "The smallest number of the list is", "answer": 1},
        ],
    },
    "summary": {
        "context": "Text.",
        "multi_turns": [{"input": "Sum up.", "answer": "s1"}, {"input": "Again.", "answer": "s2"}],
    },
    "summary_with_needles": {
        "context": "Text.",
        "multi_turns": [
            {"task": "scbench_summary", "input": "Sum up.", "answer": "a b"},
            {"task": "scbench_passkey", "input": "Key?", "answer": "123"},
        ],
    },
    "repoqa_and_kv": {
        "context": CODE,
        "repo": "r",
        "lang": "python",
        "multi_turns": [FUNCTION | {"task": "scbench_repoqa"}, {"task": "scbench_kv", "input": "k?", "answer": "v"}],
    },
}


def write(folder: Path, task: str, *rows) -> Path:
    path = folder / f"scbench_{task}.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def real(folder: Path, task: str, row: dict | None = None, limit: int = 6000, **options):
    write(folder, task, row or ROWS[task])
    return scbench.load(task, folder, tokenizer(), limit, **options)
