"""RULER items of any task at any length in any tokenizer, deterministic from a seed.

Each item has draws of its own, seeded by run seed, task and item number: item 7 is the same whether 8 or 500 items are
made, and a longer context keeps its keys. Where the official scripts find one haystack size for a task and take off a
fixed number of units for an item that is too long, each item here holds the most that fits; where they loop for ever
because nothing fits, one InputError says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvrepro.benchmarks.example import Example, Question, length
from kvrepro.benchmarks.fit import largest_fitting
from kvrepro.benchmarks.ruler import aggregation, niah, qa, tracing
from kvrepro.benchmarks.ruler.definitions import Task
from kvrepro.benchmarks.ruler.definitions import task as definition
from kvrepro.benchmarks.ruler.problem import Problem, Request
from kvrepro.benchmarks.ruler.sources import Sources
from kvrepro.benchmarks.stand_ins import check_size
from kvrepro.errors import InputError

BENCHMARK = "ruler"
_FILLED = 0.9  # a source that ends before this share of the room is filled is too short for the length

#: A builder yields an item's problem in the published form, and after it reduced forms for lengths it does not fit.
BUILDERS: dict[str, Callable[[Task, Request], Iterator[Problem]]] = {
    "niah": niah.build,
    "vt": tracing.build,
    "cwe": aggregation.build_cwe,
    "fwe": aggregation.build_fwe,
    "qa": qa.build,
}


def generate(
    task: str, n_items: int, length: int, tokenizer, seed: int, sources: Sources, chat: bool = False
) -> list[Example]:
    """``n_items`` examples of a task whose prompt tokens plus generated tokens are at most ``length``.

    ``tokenizer`` counts as ``render`` tokenises, with the chat template when ``chat``. ``info`` of an example holds
    "length" (prompt and generated tokens), "size" (units of haystack), "metric", "split",
    "published_form" (False where only a reduced form of vt or cwe fits) and what the task adds. Raises InputError for
    an unknown task, a source that is missing or too short, and a length too short for the task.
    """
    chosen = definition(task)
    check_size("RULER", n_items, length)
    items = [_Item(chosen, item, length, tokenizer, seed, sources, chat) for item in range(n_items)]
    for form in range(len(items[0].forms)):  # one form for all items, so that a mean never mixes two
        examples = [item.fill(form) for item in items]
        if all(examples):
            return examples
    item = items[examples.index(None)]
    raise InputError(
        f"{task}: item {item.number} needs at least {item.least()} tokens with this tokenizer, more than the length of "
        f"{length}: raise the length or leave the task out."
    )


class _Item:
    """One item of a task in each of its forms, to be filled up to the length."""

    def __init__(self, task: Task, number: int, length: int, tokenizer, seed: int, sources: Sources, chat: bool):
        self.task, self.number, self.length, self.seed, self.sources = task, number, length, seed, sources
        self.tokenizer, self.chat = tokenizer, chat
        request = Request(f"{seed}/{task.name}/{number}", number, length, self.count, sources)
        self.forms = list(BUILDERS[task.family](task, request))

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def example(self, problem: Problem, context: str, info: dict) -> Example:
        words = problem.wording
        return Example(
            benchmark=BENCHMARK,
            task=self.task.name,
            item=self.number,
            seed=self.seed,
            instruction=problem.instruction_head + words.instruction,
            context=context,
            questions=(
                Question(
                    words.question + words.answer_prefix,
                    problem.references,
                    self.task.max_new_tokens,
                    words.answer_prefix,
                ),
            ),
            info=info,
        )

    def around(self, problem: Problem) -> int:
        """Tokens of everything but the context, generated ones included."""
        return length(self.example(problem, "", {}), self.tokenizer, self.chat)

    def least(self) -> int:
        """The shortest length that any form fits."""
        return min(self.around(form) + self.count(form.context(form.smallest)) for form in self.forms)

    def fill(self, form: int) -> Example | None:
        """The example with the largest context that fits; None when none does."""
        problem = self.forms[form]
        around = self.around(problem)
        room = self.length - around
        fitted = largest_fitting(lambda n: self.count(problem.context(n)), room, problem.smallest, problem.largest)
        if fitted is None:
            return None
        size, tokens = fitted
        if size == problem.largest and tokens < _FILLED * room:
            raise InputError(f"{problem.shortage}, or lower the length of {self.length} tokens.")
        info = {
            "metric": self.task.metric,
            "split": self.sources.split,
            "length": around + tokens,
            "size": size,
            "published_form": form == 0,
        }
        return self.example(problem, problem.context(size), info | problem.details(size))
