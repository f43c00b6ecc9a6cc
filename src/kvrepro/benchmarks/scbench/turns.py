"""From a row to an example: the prompts of both shared-context modes, and middle truncation.

``multi_turn`` (official default): a question follows the questions before it with their published answers, never the
model's. ``multi_request``: every question stands by itself after the context. In both, only instruction and context are
prefilled and compressed; the history is part of the question (GateSight Appendix A: a query-agnostic method sees the
shared prefix alone).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from kvrepro.benchmarks.example import Example, Question, length, longest_turn, render
from kvrepro.benchmarks.scbench.definitions import MULTI_REQUEST, SOURCE, Task, check_mode
from kvrepro.benchmarks.scbench.rows import OPTIONS, Row, Turn
from kvrepro.benchmarks.scbench.truncate import middle
from kvrepro.models.chat import MARKER, around_user_turn

BENCHMARK = "scbench"
STAND_IN = "scbench_stand_in"  # generated contexts are never called by the benchmark's name


def between_turns(tokenizer: Any) -> str:
    """What a chat template puts between an answer and the next words of the user."""
    messages = [{"role": role, "content": MARKER} for role in ("user", "assistant", "user")]
    return tokenizer.apply_chat_template(messages, tokenize=False).split(MARKER)[2]


def _fill(template: str, task: Task, turn: Turn, answer: str = "", context: str = "") -> str:
    """A template filled; a text that holds braces is never read as a template."""
    fields = {"input": turn.text, "answer": answer, "context": context}
    fields |= dict(zip(OPTIONS.lower(), turn.options, strict=True)) if turn.options else {}
    if task.what:
        target = re.search(task.what["pattern"], turn.text)[0].lower().removesuffix(" is")
        fields["what"] = task.what["question"].format(target=target)
    return template.format(**fields)


def example(
    task: Task, row: Row, item: int, seed: int, tokenizer: Any, mode: str, chat: bool, info: dict, benchmark: str
) -> Example:
    """The example of a row, whole. ``info`` gains what scorers need: "mode", "turns", and "lang" of code.

    With ``chat`` the questions carry the template's text between turns; ``render`` adds what goes around the whole.
    """
    check_mode(mode)
    first = row.turns[0]
    if mode == MULTI_REQUEST:
        opening, closing = task.first_multi_request, ""
    else:
        opening, closing = task.first.split("{context}")
        opening += "{context}"
    instruction = _fill(opening, task, first, context=MARKER).split(MARKER)[0]
    asked = [_fill(closing or task.question, task, first)]
    follow_up = task.question if mode == MULTI_REQUEST or chat else task.later
    for previous, turn in zip(row.turns, row.turns[1:], strict=False):
        asked.append(_fill(follow_up, task, turn, answer=previous.answer))
    prefixes = [""] * len(asked)
    if mode != MULTI_REQUEST:
        if chat:
            prefixes = ["", *[task.chat_answer_prefix] * (len(asked) - 1)]
        asked = _with_history(asked, row, prefixes, tokenizer) if chat else _joined(asked)
    questions = tuple(
        Question(text + prefix, turn.references, turn.subtask.max_new_tokens, prefix, turn.subtask.name)
        for text, prefix, turn in zip(asked, prefixes, row.turns, strict=True)
    )
    turns = [{"label": t.label, "name": t.name} for t in row.turns]
    more = {"mode": mode, "turns": turns} | ({"lang": row.lang, "repo": row.repo} if task.code else {})
    return Example(benchmark, task.name, item, seed, instruction, row.context, questions, info | more)


def _joined(asked: list[str]) -> list[str]:
    """Every turn after all those before it; a later template begins with the answer to the turn before."""
    return ["".join(asked[: number + 1]) for number in range(len(asked))]


def _with_history(asked: list[str], row: Row, prefixes: list[str], tokenizer: Any) -> list[str]:
    """The same in a chat: an answer stands in its own turn, after the generation prompt it would have had."""
    tail, between = around_user_turn(tokenizer)[1], between_turns(tokenizer)
    texts, history = [], ""
    for text, prefix, turn in zip(asked, prefixes, row.turns, strict=True):
        texts.append(history + text)
        history += text + tail + prefix + turn.answer + between
    return texts


def truncated(example: Example, task: Task, tokenizer: Any, limit: int, chat: bool) -> Example:
    """``example`` with the middle of its context taken out so that every turn stays within ``limit`` tokens.

    The room of the context is the official one: ``limit`` less the generation length times the turns (half their sum
    for a mixed task, and 1,000 in multi-request mode), or what the longest turn leaves where that is less. ``info``
    gains "length", "context_tokens" (before the cut) and "truncated". Raises InputError when nothing is left.
    """
    bare = render(replace(example, context=""), tokenizer, chat)
    generated = sum(sub.max_new_tokens for sub in task.subtasks.values()) * len(example.questions)
    official = limit - (generated // 2 if task.mixed else generated)
    around = len(bare.prefix)
    if example.info["mode"] == MULTI_REQUEST:
        official -= SOURCE["published_run"]["reserved_multi_request"]
        first = 0  # the script cuts the prompt of the context alone
    else:
        first = len(bare.questions[0])
    room = min(official - around - first, limit - around - longest_turn(example, bare.questions))
    context, before = middle(example.context, tokenizer, room, (room + around + first) // 2 - around)
    example = replace(example, context=context)
    more = {"length": length(example, tokenizer, chat), "context_tokens": before, "truncated": before > room}
    return replace(example, info=example.info | more)
