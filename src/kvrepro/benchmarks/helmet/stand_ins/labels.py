"""Texts of classes: every class has a made-up phrase, which its texts share."""

from __future__ import annotations

from collections.abc import Callable

from kvrepro.benchmarks.helmet.stand_ins.draft import Draft
from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.ruler.problem import Request, growing

CLASSES = 8  #: an eighth, and less, of the published ones, as a context of 4,096 tokens is an eighth of 32K

_FRAMES = {
    "trec_fine": "What is the {word} {phrase} ?",
    "nlu": "{word} the {phrase} please",
    "banking77": "What can I do about my {word} {phrase} ?",
    "clinic150": "can you tell me about the {word} {phrase} ?",
}


def labelled(task: str, fields: dict[str, str]) -> Callable[[Request], Draft]:
    """The builder of a task: texts of its frame under the names of its fields."""

    def build(request: Request) -> Draft:
        rng, taken, split = request.rng("texts"), set(), request.sources.split
        first, second = request.sources.first_words, request.sources.second_words
        phrases = [draws.word_pair(rng, split, first, second, taken) for _ in range(CLASSES)]

        def text(label: int) -> dict:
            words = _FRAMES[task].format(word=rng.choice(first), phrase=phrases[label])
            return {fields["text"]: words, fields["label"]: label}

        asked = text(rng.randrange(CLASSES))
        shown = growing(lambda: [text(label) for label in range(CLASSES)])

        def others(n: int) -> list[dict]:
            return [row for each in shown(-(-n // CLASSES)) for row in each]

        return Draft(lambda n: asked, others, smallest=CLASSES)

    return build
