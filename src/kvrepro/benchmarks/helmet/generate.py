"""Stand-ins of any task at any length in any tokenizer, deterministic from a seed.

Each item has draws of its own, seeded by run seed, task and item number, and holds the most context that fits. The rows
go through the check of published files, and their examples are made as those of real data are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.helmet import icl
from kvrepro.benchmarks.helmet.build import STAND_IN, example
from kvrepro.benchmarks.helmet.definitions import Task
from kvrepro.benchmarks.helmet.definitions import task as definition
from kvrepro.benchmarks.helmet.rows import Row, parse, parse_labelled
from kvrepro.benchmarks.helmet.stand_ins import labels, passages, stories
from kvrepro.benchmarks.helmet.stand_ins.draft import Draft
from kvrepro.benchmarks.ruler.problem import Request
from kvrepro.benchmarks.ruler.sources import Sources, check_sentences
from kvrepro.benchmarks.stand_ins import capped, check_size, fullest

BUILDERS: dict[str, Callable[[Request], Draft]] = {
    "kilt_nq": passages.one_hop,
    "kilt_triviaqa": passages.one_hop,
    "kilt_popqa_3": passages.one_hop,
    "kilt_hotpotqa": passages.two_hops,
    "msmarco_rerank_psg": passages.ranked,
    "narrativeqa": stories.story,
    "infbench_qa_eng": stories.book,
    "infbench_choice_eng": stories.choice,
    "infbench_sum_eng": stories.book_summary,
    "multi_lexsum": stories.case,
} | {name: labels.labelled(name, definition(name).fields) for name in ("trec_fine", "nlu", "banking77", "clinic150")}


def generate(
    task: str,
    n_items: int,
    tokens: int,
    tokenizer: Any,
    seed: int,
    sources: Sources,
    chat: bool = False,
    most_new_tokens: int | None = None,
) -> list[Example]:
    """``n_items`` stand-ins of a task whose prompt and answer have at most ``tokens`` tokens.

    ``most_new_tokens`` caps the published generation lengths (1,200 tokens for a summary leave little of a short
    context); None keeps them. ``info`` holds "length", "size" (units of context), "split", "stand_in" and what scorers
    need. Raises InputError for an unknown task, a missing haystack, and a length too short.
    """
    chosen = capped(definition(task), most_new_tokens)
    check_size("HELMET", n_items, tokens)
    check_sentences(sources, "HELMET")
    return [_fill(chosen, item, tokens, tokenizer, seed, sources, chat) for item in range(n_items)]


def _fill(task: Task, item: int, tokens: int, tokenizer: Any, seed: int, sources: Sources, chat: bool) -> Example:
    """One item with the largest context that fits."""

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    draft = BUILDERS[task.name](Request(f"{seed}/{task.name}/{item}", item, tokens, count, sources))

    def made(size: int) -> Example:
        context, asked, demos = _parts(task, draft, size, seed, f"generated {task.name}, item {item}")
        info = {"source": "generated", "stand_in": True, "split": sources.split, "size": size}
        return example(task, context, asked, demos, item, seed, chat, info, STAND_IN)

    return fullest(made, draft.smallest, tokens, tokenizer, chat, "raise the length or leave the task out")


def _parts(task: Task, draft: Draft, size: int, seed: int, where: str) -> tuple[str, Row, list[Row]]:
    """Context, question and demonstrations of a draft at a size."""
    if task.format == "labelled":
        train = [parse_labelled(task, row, where) for row in draft.others(size)]
        return *icl.question(task, parse_labelled(task, draft.asked(size), where), train, size, seed), []
    asked = parse(task, draft.asked(size), where)
    return asked.context, asked, [parse(task, row, where) for row in draft.others(size)]
