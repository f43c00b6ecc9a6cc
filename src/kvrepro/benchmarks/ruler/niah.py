"""Needles in a haystack: the eight niah tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np

from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.ruler.definitions import SENTENCES, Task, wording
from kvrepro.benchmarks.ruler.problem import Problem, Request, growing, scatter
from kvrepro.benchmarks.ruler.sources import Sources
from kvrepro.errors import InputError

#: The 40 depths, in percent of the sentences, among which an essay's needles are placed without repetition.
DEPTHS: tuple[int, ...] = tuple(int(depth) for depth in np.round(np.linspace(0, 100, num=40)))


def needle(key: str, value: str, kind: str) -> str:
    """The sentence that hides one value; ``kind`` is the plural ("numbers")."""
    return SENTENCES["needle"].format(type_needle_v=kind, key=key, value=value)


def query(keys: list[str]) -> str:
    """Keys as the question lists them: "a, b, and c"."""
    joined = SENTENCES["query"]
    return joined["last_separator"].join(filter(None, [joined["separator"].join(keys[:-1]), keys[-1]]))


def draw_kind(kind: str, rng: random.Random, sources: Sources, taken: set[str]) -> str:
    """A key or value of a kind: numbers, uuids or words."""
    if kind == "numbers":
        return draws.number(rng, sources.split, taken)
    if kind == "uuids":
        return draws.uuid4(rng, sources.split, taken)
    if not sources.first_words or not sources.second_words:
        raise InputError("needles with word keys need a word list: pass words to the RULER sources.")
    return draws.word_pair(rng, sources.split, sources.first_words, sources.second_words, taken)


def build(task: Task, request: Request) -> Iterator[Problem]:
    """The problem of one item. Keys and values of an item are all distinct, distractors included."""
    options, sources, rng = task.options, request.sources, request.rng("needles")
    taken: set[str] = set()
    keys = [draw_kind(options["key"], rng, sources, taken) for _ in range(options["keys"])]
    values = [[draw_kind(options["value"], rng, sources, taken) for _ in range(options["values"])] for _ in keys]
    needles = [needle(key, value, options["value"]) for key, own in zip(keys, values, strict=True) for value in own]
    rng.shuffle(needles)
    asked = rng.sample(range(len(keys)), options["queries"])

    def other_needle(drawn: random.Random) -> str:
        key = draw_kind(options["key"], drawn, sources, taken)
        return needle(key, draw_kind(options["value"], drawn, sources, taken), options["value"])

    distractors = request.rng("distractors")
    if options["haystack"] == "essay":
        context, smallest = _essay(request, needles), 1
    elif options["haystack"] == "noise":
        context, smallest = _lines(request, needles, lambda n: [SENTENCES["noise"]] * n), len(needles)
    else:
        context, smallest = _lines(request, needles, growing(lambda: other_needle(distractors))), len(needles)
    yield Problem(
        wording=wording(
            task,
            answers=options["queries"] * options["values"],
            type_needle_v=options["value"],
            query=query([keys[i] for i in asked]),
        ),
        references=tuple(value for i in asked for value in values[i]),
        context=context,
        smallest=smallest,
        details=lambda n: {"depths": _depths(context(n), needles)},
    )


def _lines(request: Request, needles: list[str], haystack: Callable[[int], list[str]]) -> Callable[[int], str]:
    """Contexts of n lines with the needles before random ones."""
    return lambda n: "\n".join(scatter(haystack(n), needles, request.rng("places")))


def _essay(request: Request, needles: list[str]) -> Callable[[int], str]:
    """Contexts of n words of prose with the needles at random depths, between sentences."""
    prose = request.sources.prose
    if prose is None:
        raise InputError("needles in essays need a text: pass its sentences to the RULER sources.")
    rng = request.rng("places")
    start = prose.start(rng)
    depths = sorted(rng.sample(DEPTHS, len(needles)))

    def context(n: int) -> str:
        sentences = prose.words(start, n)
        parts, done = [], 0
        for depth, text in zip(depths, needles, strict=True):
            place = len(sentences) * depth // 100
            parts += [*sentences[done:place], text]
            done = place
        return " ".join([*parts, *sentences[done:]])

    return context


def _depths(context: str, needles: list[str]) -> list[float]:
    """Where each needle begins, as a share of the context's characters."""
    return [round(context.index(text) / len(context), 4) for text in needles]
