"""Stand-ins of any task at any length in any tokenizer, deterministic from a seed.

Each item has draws of its own, seeded by run seed, task and item number, and holds the most context that fits. The rows
go through the check of published files, and their examples are made as those of real data are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.scbench import functions
from kvrepro.benchmarks.scbench.definitions import MULTI_TURN, Task, check_mode
from kvrepro.benchmarks.scbench.definitions import task as definition
from kvrepro.benchmarks.scbench.load import needles
from kvrepro.benchmarks.scbench.rows import parse
from kvrepro.benchmarks.scbench.stand_ins import chinese, code, overview, reading, retrieval
from kvrepro.benchmarks.scbench.stand_ins.draft import Draft, Request
from kvrepro.benchmarks.scbench.stand_ins.sources import LANG, Sources
from kvrepro.benchmarks.scbench.turns import STAND_IN, example
from kvrepro.benchmarks.stand_ins import capped, check_size, fullest

BUILDERS: dict[str, Callable[[Request], Draft]] = {
    "kv": retrieval.kv,
    "prefix_suffix": retrieval.prefix_suffix,
    "vt": retrieval.vt,
    "repoqa": code.repoqa,
    "qa_eng": reading.qa_eng,
    "qa_chn": chinese.qa_chn,
    "choice_eng": reading.choice_eng,
    "many_shot": overview.many_shot,
    "mf": overview.mf,
    "summary": reading.summary,
    "summary_with_needles": reading.summary_with_needles,
    "repoqa_and_kv": code.repoqa_and_kv,
}


def generate(
    task: str,
    n_items: int,
    tokens: int,
    tokenizer: Any,
    seed: int,
    sources: Sources,
    mode: str = MULTI_TURN,
    chat: bool = False,
    most_new_tokens: int | None = None,
    max_turns: int | None = None,
) -> list[Example]:
    """``n_items`` stand-ins of a task whose context and longest turn have at most ``tokens`` tokens, answer included.

    ``most_new_tokens`` caps the published generation lengths (1,024 tokens for a function leave little of a short
    context); None keeps them. ``max_turns`` keeps the first questions of a context. ``info`` holds "length", "size"
    (units of context), "split", "stand_in" and what scorers need. Raises InputError for an unknown task or mode,
    sources that are too small, and a length too short.
    """
    chosen = definition(task)
    check_mode(mode)
    check_size("SCBench", n_items, tokens)
    if chosen.code:
        functions.require(LANG)
    return [
        _fill(chosen, item, tokens, tokenizer, seed, sources, mode, chat, most_new_tokens, max_turns)
        for item in range(n_items)
    ]


def _fill(
    task: Task,
    item: int,
    tokens: int,
    tokenizer: Any,
    seed: int,
    sources: Sources,
    mode: str,
    chat: bool,
    most_new_tokens: int | None,
    max_turns: int | None,
) -> Example:
    """One item with the largest context that fits."""
    draft = BUILDERS[task.name](Request(f"{seed}/{task.name}/{item}", sources))

    def made(size: int) -> Example:
        row = parse(task, draft.row(size), f"generated {task.name}, item {item}")
        row = replace(row, turns=row.turns[:max_turns])
        info = {"source": "generated", "stand_in": True, "split": sources.split, "size": size}
        if task.code:
            info["needles"] = needles([row])[row.repo]
        whole = example(task, row, item, seed, tokenizer, mode, chat, info, STAND_IN)
        return replace(whole, questions=tuple(capped(question, most_new_tokens) for question in whole.questions))

    remedy = "raise the length or leave the task out"
    return fullest(made, draft.smallest, tokens, tokenizer, chat, remedy, draft.largest, draft.shortage)
