"""Stand-ins of any task at any length in any tokenizer, deterministic from a seed.

Each item has draws of its own, seeded by run seed, task and item number, and holds the most context that fits. The rows
go through the check of published files, and their examples are made as those of real data are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvrepro.benchmarks.example import Example, length
from kvrepro.benchmarks.ruler.fit import largest_fitting
from kvrepro.benchmarks.scbench import functions
from kvrepro.benchmarks.scbench.definitions import MULTI_TURN, Task, check_mode
from kvrepro.benchmarks.scbench.definitions import task as definition
from kvrepro.benchmarks.scbench.load import needles
from kvrepro.benchmarks.scbench.rows import Row, parse
from kvrepro.benchmarks.scbench.stand_ins import chinese, code, overview, reading, retrieval
from kvrepro.benchmarks.scbench.stand_ins.draft import Draft, Request
from kvrepro.benchmarks.scbench.stand_ins.sources import LANG, Sources
from kvrepro.benchmarks.scbench.turns import STAND_IN, example
from kvrepro.errors import InputError

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
_FILLED = 0.9  # a source that ends before this share of the length is filled is too short


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
    if n_items < 1 or tokens < 1:
        raise InputError(
            f"SCBench needs at least one item and a positive length, got {n_items} items of {tokens} tokens."
        )
    if chosen.code:
        functions.require(LANG)
    return [
        _Item(chosen, item, seed, tokenizer, sources, mode, chat, most_new_tokens, max_turns).fill(tokens)
        for item in range(n_items)
    ]


class _Item:
    """One item of a task, to be filled up to a length."""

    def __init__(
        self,
        task: Task,
        number: int,
        seed: int,
        tokenizer: Any,
        sources: Sources,
        mode: str,
        chat: bool,
        most_new_tokens: int | None,
        max_turns: int | None,
    ):
        self.task, self.number, self.seed, self.tokenizer = task, number, seed, tokenizer
        self.mode, self.chat, self.split = mode, chat, sources.split
        self.most, self.turns = most_new_tokens, max_turns
        self.draft = BUILDERS[task.name](Request(f"{seed}/{task.name}/{number}", sources))

    def row(self, size: int) -> Row:
        row = parse(self.task, self.draft.row(size), f"generated {self.task.name}, item {self.number}")
        return replace(row, turns=row.turns[: self.turns])

    def example(self, size: int) -> Example:
        row = self.row(size)
        info = {"source": "generated", "stand_in": True, "split": self.split, "size": size}
        if self.task.code:
            info["needles"] = needles([row])[row.repo]
        made = example(self.task, row, self.number, self.seed, self.tokenizer, self.mode, self.chat, info, STAND_IN)
        if self.most is None:
            return made
        questions = (replace(q, max_new_tokens=min(q.max_new_tokens, self.most)) for q in made.questions)
        return replace(made, questions=tuple(questions))

    def tokens(self, size: int) -> int:
        return length(self.example(size), self.tokenizer, self.chat)

    def fill(self, limit: int) -> Example:
        """The example with the largest context that fits."""
        draft = self.draft
        fitted = largest_fitting(self.tokens, limit, draft.smallest, draft.largest)
        if fitted is None:
            raise InputError(
                f"{self.task.name}: item {self.number} needs at least {self.tokens(draft.smallest)} tokens with this "
                f"tokenizer, more than the length of {limit}: raise the length or leave the task out."
            )
        size, tokens = fitted
        if size == draft.largest and tokens < _FILLED * limit:
            raise InputError(f"{self.task.name}: {draft.shortage}, or lower the length of {limit} tokens.")
        made = self.example(size)
        return replace(made, info=made.info | {"length": tokens})
