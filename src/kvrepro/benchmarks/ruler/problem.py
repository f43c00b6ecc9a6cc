"""What a task builder makes of one item: everything fixed except how much haystack the context holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kvrepro.benchmarks.ruler.definitions import Wording
from kvrepro.benchmarks.ruler.sources import Sources

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One item to build. ``key`` seeds its draws, ``count`` gives the number of tokens of a text."""

    key: str
    item: int
    length: int
    count: Callable[[str], int]
    sources: Sources

    def rng(self, purpose: str) -> random.Random:
        """A fresh generator for one purpose, so that a longer context changes no other draw (str seeds use SHA-512)."""
        return random.Random(f"{self.key}/{purpose}")


@dataclass(frozen=True)
class Problem:
    """One item at any size. ``context(n)`` holds ``n`` units of haystack and is the same whenever it is called.

    ``smallest`` and ``largest`` bound ``n``; where a source can run out before the length is reached, ``shortage`` is
    the sentence that says what to pass. ``details(n)`` goes to ``Example.info``.
    """

    wording: Wording
    references: tuple[str, ...]
    context: Callable[[int], str]
    smallest: int
    largest: int | None = None
    shortage: str = ""
    instruction_head: str = ""  # the one-shot example of vt and cwe
    details: Callable[[int], dict] = field(default=lambda n: {})


def growing(make: Callable[[], T]) -> Callable[[int], list[T]]:
    """``first(n)`` gives the first n results of ``make``, each made once, so a shorter list begins a longer one."""
    made: list[T] = []

    def first(n: int) -> list[T]:
        while len(made) < n:
            made.append(make())
        return made[:n]

    return first


def scatter(lines: list[str], inserts: list[str], rng: random.Random) -> list[str]:
    """``inserts``, in their order, before distinct random lines; lines are shared where there are too few."""
    if len(lines) >= len(inserts):
        places = sorted(rng.sample(range(len(lines)), len(inserts)))
    else:
        places = sorted(rng.choices(range(len(lines) + 1), k=len(inserts)))
    merged = list(lines)
    for shift, (place, text) in enumerate(zip(places, inserts, strict=True)):
        merged.insert(place + shift, text)
    return merged
