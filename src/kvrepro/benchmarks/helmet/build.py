"""From a row and its demonstrations to an example: the published prompt, cut where the context and the question go.

The prompt's opening is the instruction, demonstrations and context are what is compressed, the rest is the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvrepro.benchmarks.example import Example, Question, length
from kvrepro.benchmarks.helmet.definitions import OMITTED, Task
from kvrepro.benchmarks.helmet.rows import Row
from kvrepro.errors import InputError
from kvrepro.models.chat import MARKER

BENCHMARK = "helmet"
STAND_IN = "helmet_stand_in"  # generated contexts are never called by the benchmark's name


def demonstrations(task: Task, rows: Iterable[Row]) -> str:
    """The text of demonstrations, with what stands around them; nothing where there are none."""
    texts = [
        task.demo.format(context=row.context, question=row.question, options=row.options, answer=row.shown)
        for row in rows
    ]
    return task.demos.format(demos="\n\n".join(texts)) if texts else ""


def example(
    task: Task,
    context: str,
    asked: Row,
    demos: Sequence[Row],
    item: int,
    seed: int,
    chat: bool,
    info: Mapping[str, Any],
    benchmark: str,
) -> Example:
    """The example of a question about ``context``. ``info`` gains what scorers need: "prepended", the answer prefix
    where the prompt ends with it, and the "relevance" of ranked passages."""
    chat = chat and task.chat
    filled = task.prompt.format(demos=MARKER, context=MARKER, question=asked.question, options=asked.options)
    parts = filled.split(MARKER)
    instruction, between, question = parts if len(parts) == 3 else (parts[0], "", parts[1])
    if not chat:
        question += task.join + task.answer_prefix
    more = {"prepended": "" if chat else task.answer_prefix}
    more |= {"relevance": dict(asked.relevance)} if asked.relevance else {}
    return Example(
        benchmark,
        task.name,
        item,
        seed,
        instruction,
        demonstrations(task, demos) + between + context,
        (Question(question, asked.answers, task.max_new_tokens),),
        dict(info) | more,
        chat=task.chat,
    )


def cut(text: str, tokenizer: Any, tokens: int) -> tuple[str, int]:
    """A document of at most ``tokens`` tokens, its end replaced by the sentence that says so, and the number of tokens
    that it had."""
    ends = [end for _, end in _offsets(text, tokenizer)]
    if len(ends) <= tokens:
        return text, len(ends)
    room = tokens - len(tokenizer.encode(OMITTED, add_special_tokens=False))
    if room < 1:
        raise InputError(f"{tokens} tokens leave no room for a document; raise the length.")
    return text[: ends[room - 1]] + OMITTED, len(ends)


def within(made: Example, tokenizer: Any, limit: int, chat: bool) -> Example:
    """``made`` with the end of its context taken off where prompt and answer exceed ``limit`` tokens; ``info`` gains
    "length" and "truncated". Raises InputError when nothing is left."""
    excess = first = length(made, tokenizer, chat) - limit
    while excess > 0:
        starts = [start for start, _ in _offsets(made.context, tokenizer)]
        if excess >= len(starts):
            raise InputError(
                f"{made.task} item {made.item}: instruction, question and answer alone exceed {limit} tokens; raise "
                "the length."
            )
        made = replace(made, context=made.context[: starts[-excess]])
        excess = length(made, tokenizer, chat) - limit
    more = {"length": length(made, tokenizer, chat), "truncated": first > 0}
    return replace(made, info=made.info | more)


def _offsets(text: str, tokenizer: Any) -> list[tuple[int, int]]:
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            "documents are cut at tokens, which needs a tokenizer that gives offsets: load its fast version."
        )
    return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
