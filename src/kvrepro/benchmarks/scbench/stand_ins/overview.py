"""Information from the whole context: many_shot and mf."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from kvrepro.benchmarks.ruler.problem import growing
from kvrepro.benchmarks.scbench.stand_ins.draft import TURNS, Draft, Request

CLASSES = 5
INPUTS = 12  # different ones before any comes again
NUMBERS = (10, 999)  # smallest and largest value that is drawn

#: What mf asks, and how it is found in the sorted list. The list has an odd number of entries.
STATISTICS: dict[str, Callable[[list[int]], int]] = {
    "largest number": lambda ordered: ordered[-1],
    "second largest number": lambda ordered: ordered[-2],
    "smallest number": lambda ordered: ordered[0],
    "second smallest number": lambda ordered: ordered[1],
    "median of the numbers": lambda ordered: statistics.median_low(ordered),
}


def many_shot(request: Request) -> Draft:
    """Examples "input: label" of made-up inputs, each in one of five classes; a question is an input seen before.

    Every input comes about as often; longer contexts have more inputs and more examples of each. Labels are lists of
    one text, so that the published scorer reads them whole.
    """
    rng, taken = request.rng("classes"), set()
    classes = [request.word_pair(rng, taken) for _ in range(CLASSES)]
    inputs = growing(lambda: (request.word_pair(rng, taken), rng.choice(classes)))

    def row(n: int) -> dict:
        different = max(INPUTS, int(n**0.75))
        shown = [inputs(different)[i % different] for i in range(n)]
        request.rng("order").shuffle(shown)
        return {
            "context": "Entries:" + "".join(f"\n{text}: {label}" for text, label in shown) + "\n\nAgain:",
            "multi_turns": [{"input": f"{text}:", "answer": [label]} for text, label in inputs(TURNS)],
            "task": "made-up classes",
        }

    return Draft(row, smallest=INPUTS)


def mf(request: Request) -> Draft:
    """A list of numbers; the questions ask for its largest, smallest and middle ones."""
    rng = request.rng("numbers")
    numbers = growing(lambda: rng.randint(*NUMBERS))

    def row(n: int) -> dict:
        listed = numbers(2 * n + 1)
        ordered = sorted(listed)
        turns = [
            {"input": f"The {name} in the list above is", "answer": find(ordered)} for name, find in STATISTICS.items()
        ]
        return {"context": listed, "multi_turns": turns}

    return Draft(row, smallest=TURNS)
