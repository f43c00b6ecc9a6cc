"""What the settings of several benchmarks have in common: their tasks, where stand-ins take text from, lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kvrepro.data import corpora
from kvrepro.errors import InputError, unknown


def check_tasks(names: Iterable[str], tasks: Iterable[str], kind: str, where: str) -> None:
    """InputError for a name that is none of ``tasks``; ``kind`` is what they are ("RULER task"), ``where`` the key."""
    for name in names:
        if name not in tasks:
            raise unknown(kind, name, tasks, where)


def check_prose(settings: Mapping[str, Any], lacking: str, where: str) -> None:
    """InputError unless stand-ins have a corpus of the repository to take sentences from; ``lacking`` is what there
    would be none of otherwise."""
    prose = settings.get("sources", {}).get("prose")
    if prose is None:
        raise InputError(f"{where}: there are no {lacking}; give data or sources with prose.")
    if prose not in corpora.names():
        raise unknown("corpus", prose, corpora.names(), f"{where}.sources.prose")


def corpora_of(settings: Mapping[str, Any], *more: str) -> dict[str, str]:
    """The corpora that stand-ins are made of, each by its name: words are counted over all of the repository."""
    return {name: name for name in sorted({*corpora.names(), *more, settings["sources"]["prose"]})}


def least_context(settings: Mapping[str, Any], answers: Iterable[int], around: int, enough: int) -> int:
    """Tokens that a context has at least: ``enough``, or what is left of the length by the longest of the ``answers``
    that may be given and by ``around`` tokens of a question and of what no longer fits."""
    answer = min(max(answers), settings.get("most_new_tokens", math.inf))
    return max(1, min(enough, settings["length"] - answer - around))
