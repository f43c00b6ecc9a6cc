"""What a stand-in builder makes of one item: a row of the published format at any size."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.ruler.definitions import SENTENCES, wording
from kvrepro.benchmarks.ruler.definitions import task as ruler_task
from kvrepro.benchmarks.scbench.stand_ins.sources import Sources

TURNS = 5  # questions a context has; SCBench's mean


@dataclass(frozen=True)
class Request:
    """One item to build: ``key`` seeds its draws."""

    key: str
    sources: Sources

    def rng(self, purpose: str) -> random.Random:
        """A fresh generator for one purpose, so that a longer context changes no other draw."""
        return random.Random(f"{self.key}/{purpose}")

    @property
    def split(self) -> str | None:
        """Split of the drawn strings."""
        return self.sources.split

    def word_pair(self, rng: random.Random, taken: set[str] | None = None) -> str:
        """Two words with a hyphen."""
        return draws.word_pair(rng, self.split, self.sources.words, self.sources.words, taken)


@dataclass(frozen=True)
class Draft:
    """``row(n)`` is the row with ``n`` units of context, the same whenever it is called; its questions never change.

    ``shortage`` says what to do where ``largest`` units do not fill a length.
    """

    row: Callable[[int], dict]
    smallest: int
    largest: int | None = None
    shortage: str = ""


def needle(kind: str, key: str, value: str) -> str:
    """RULER's sentence that hides a value; ``kind`` is "numbers" or "uuids"."""
    return SENTENCES["needle"].format(type_needle_v=kind, key=key, value=value)


def needle_question(kind: str, key: str) -> str:
    """RULER's question for the value of a key, answer prefix included."""
    words = wording(ruler_task("niah_single_1"), type_needle_v=kind, query=key)
    return words.question + words.answer_prefix


def needle_instruction(kind: str) -> str:
    """RULER's instruction before a text with needles."""
    return wording(ruler_task("niah_single_1"), answers=2, type_needle_v=kind, query="").instruction


def spread(lines: list[str], inserts: list[str], seed: str) -> list[str]:
    """``inserts`` before lines drawn once and for all: a share of the text each, whatever its size."""
    rng = random.Random(seed)
    merged = list(lines)
    for shift, (share, text) in enumerate(sorted((rng.random(), text) for text in inserts)):
        merged.insert(int(share * (len(lines) + 1)) + shift, text)
    return merged
