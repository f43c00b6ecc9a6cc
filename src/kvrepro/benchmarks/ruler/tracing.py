"""Variable tracking (vt): chains of assignments among noise, after a one-shot example."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

from kvrepro.benchmarks.fit import largest_fitting
from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.ruler.definitions import SENTENCES, Task, wording
from kvrepro.benchmarks.ruler.problem import Problem, Request, scatter


def chain(names: list[str], value: str) -> list[str]:
    """The lines that give ``value`` to every one of ``names``."""
    steps = [SENTENCES["vt_next"].format(name=b, previous=a) for a, b in pairwise(names)]
    return [SENTENCES["vt_first"].format(name=names[0], value=value), *steps]


def noise_with(chains: list[list[str]], n: int, rng: random.Random) -> str:
    """``n`` lines of noise with the lines of each chain in order before random ones."""
    lines = [SENTENCES["noise"]] * n
    for one in chains:
        lines = scatter(lines, one, rng)
    return "\n".join(lines)


def build(task: Task, request: Request) -> Iterator[Problem]:
    """The problem of one item, with the published one-shot example first, then with a shorter and a bare one.

    Those serve lengths where the published example of about 500 tokens leaves no room for the noise; the official
    script never ends there.
    """
    options, split, rng = task.options, request.sources.split, request.rng("chains")
    taken: set[str] = set()
    hops = options["hops"]

    def value() -> str:
        return draws.integer(rng, split, options["value_low"], options["value_high"], taken)

    def name_list(letters: int) -> list[str]:
        return [draws.variable_name(rng, split, letters, taken) for _ in range(hops + 1)]

    groups = [(name_list(options["name_letters"]), value()) for _ in range(options["chains"])]
    names, asked = groups[0]
    chains = [chain(*group) for group in groups]
    example_names, example_value = name_list(options["example"]["name_letters"]), value()
    example_chain = chain(example_names, example_value)

    def example_prompt(n: int) -> str:
        words = wording(task, query=example_value, num_v=hops + 1)
        context = noise_with([example_chain], n, request.rng("example places"))
        return words.instruction + words.lead + context + words.question + words.answer_prefix

    def example(tokens: int) -> tuple[str, int]:
        fitted = largest_fitting(lambda n: request.count(example_prompt(n)), tokens, 0, None)
        n = fitted[0] if fitted else 0
        form = options["example"]
        return example_prompt(n) + form["between"] + form["joiner"].join(example_names) + form["after"], n

    for tokens in (options["example"]["tokens"], options["example"]["tokens"] // 2, 0):
        head, lines = example(tokens)
        yield Problem(
            wording=wording(task, query=asked, num_v=hops + 1),
            references=tuple(names),
            context=lambda n: noise_with(chains, n, request.rng("places")),
            smallest=hops + 1,
            instruction_head=head,
            details=lambda n, lines=lines: {"example_lines": lines},
        )
