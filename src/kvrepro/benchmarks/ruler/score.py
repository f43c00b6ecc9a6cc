"""The two metrics of RULER, for one prediction, from 0 to 1 (the official scripts report their mean times 100)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kvrepro.benchmarks.ruler.definitions import task as definition
from kvrepro.errors import InputError

_CONTROL = re.compile(r"[\x00-\x1f]")


def clean(prediction: str) -> str:
    """The official pre-processing: control characters become newlines, white space at both ends goes."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def _hits(prediction: str, references: Sequence[str]) -> list[bool]:
    return [reference.lower() in prediction.lower() for reference in references]


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """Share of the references that the prediction contains, whatever their case."""
    return sum(_hits(prediction, references)) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """1 when the prediction contains any of the references, whatever its case, else 0."""
    return float(any(_hits(prediction, references)))


METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "string_match_all": string_match_all,
    "string_match_part": string_match_part,
}


def score(task: str, prediction: str, references: Sequence[str]) -> float:
    """The task's official metric on a cleaned prediction. Raises InputError without references."""
    if not references:
        raise InputError(f"{task}: an answer without references cannot be scored; the prompt file is not complete.")
    return METRICS[definition(task).metric](clean(prediction), references)
