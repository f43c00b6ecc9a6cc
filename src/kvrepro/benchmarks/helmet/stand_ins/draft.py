"""What a stand-in builder makes of one item: rows of the published format at any size."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrepro.benchmarks.ruler import facts
from kvrepro.benchmarks.ruler.problem import Request, growing

DEPTHS = 6  #: places of the answer in a list of passages, one after the other from item to item


@dataclass(frozen=True)
class Draft:
    """``asked(n)`` is the row of the question with ``n`` units of context, at least ``smallest``; its answer does not
    depend on ``n``. ``others(n)`` are the rows of demonstrations: of in-context learning as many as ``n`` asks for."""

    asked: Callable[[int], dict]
    others: Callable[[int], Sequence[dict]]
    smallest: int


def worlds(request: Request, purpose: str = "worlds") -> Callable[[int], list[facts.World]]:
    """The first n people and towns of an item, whose names are distinct."""
    rng, taken = request.rng(purpose), set()
    return growing(lambda: facts.world(rng, request.sources.split, taken))


def prose(request: Request, count: int, purpose: str = "prose") -> list[str]:
    """``count`` sentences of the item's prose, in order."""
    sentences = request.sources.prose.sentences
    start = request.rng(purpose).randrange(len(sentences))
    return [sentences[(start + i) % len(sentences)] for i in range(count)]


def at_depth(others: list, golden: list, depth: int, rng: random.Random) -> list:
    """``others`` in their order with the first of ``golden`` at ``depth`` of DEPTHS, and the rest at places drawn."""
    merged = list(others)
    merged.insert(round(depth / (DEPTHS - 1) * len(others)), golden[0])
    for each in golden[1:]:
        merged.insert(rng.randrange(len(merged) + 1), each)
    return merged
