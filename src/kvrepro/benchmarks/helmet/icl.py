"""In-context learning: demonstrations with balanced labels, and numbers in the place of labels, as published.

Every question has demonstrations, an order of them and numbers of its own, drawn from the hash of its text.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence

from kvrepro.benchmarks.helmet.build import demonstrations
from kvrepro.benchmarks.helmet.definitions import Task
from kvrepro.benchmarks.helmet.rows import Labelled, Row


def balanced(texts: Sequence[Labelled], count: int, seed: int) -> list[Labelled]:
    """``count`` of ``texts`` in rounds that hold every class once, in random order."""
    rng = random.Random(seed)
    classes: dict[int | str, list[Labelled]] = {}
    for text in texts:
        classes.setdefault(text.label, []).append(text)
    rounds: list[list[Labelled]] = [[] for _ in range(math.ceil(count / len(classes)))]
    for own in classes.values():
        drawn = rng.sample(range(len(own)), len(rounds) % len(own))
        while len(drawn) < len(rounds):
            drawn += rng.sample(range(len(own)), min(len(rounds) - len(drawn), len(own)))
        for each, index in zip(rounds, drawn, strict=True):
            each.append(own[index])
    for each in rounds:
        rng.shuffle(each)
    return [text for each in rounds for text in each][:count]


def seed_of(text: str, seed: int) -> int:
    """The seed of a question's own draws."""
    return (int(hashlib.sha256(text.encode()).hexdigest(), 16) + seed) % 2**31


def question(task: Task, asked: Labelled, train: Sequence[Labelled], shots: int, seed: int) -> tuple[str, Row]:
    """The context of ``shots`` demonstrations, and the question, its answer a number. Labels that are no numbers are
    numbered by their alphabet first."""
    own = seed_of(asked.text, seed)
    numbers = list(range(task.classes))
    random.Random(own).shuffle(numbers)
    order = sorted({text.label for text in train} | {asked.label}, key=lambda label: str(label).lower())
    place = {label: label if isinstance(label, int) else i for i, label in enumerate(order)}

    def row(text: Labelled) -> Row:
        label = str(numbers[place[text.label]])
        return Row(text.text, text.text, (label,), "", label)

    return demonstrations(task, map(row, balanced(train, shots, own))), row(asked)
