"""Random strings of RULER, and which of them belong to evaluation.

A lab model is trained on the benchmark's formats but never on the strings it is evaluated with: every key, value,
variable name, coded word, list word, person, town and county belongs to the split that its MD5 says. Each function
takes its ``random.Random`` and draws again until the string is of the wanted ``split`` ("eval", "train", or None for
either) and not in ``taken``, to which it is then added.
"""

from __future__ import annotations

import hashlib
import random
import string
import uuid
from collections.abc import Callable, Iterable, Sequence

from kvrepro.errors import InputError, unknown

EVAL, TRAIN = "eval", "train"
_TRIES = 20_000  # a split holds at least an eighth of the strings, so this many misses mean that none is left


def split_of(text: str) -> str:
    """ "eval" when the first byte of the MD5 of ``text`` (UTF-8) is a multiple of 8, else "train"."""
    return TRAIN if hashlib.md5(text.encode(), usedforsecurity=False).digest()[0] % 8 else EVAL


def of_split(strings: Iterable[str], split: str | None) -> list[str]:
    """Those of ``strings`` that belong to ``split``, in their order."""
    if split not in (EVAL, TRAIN, None):
        raise unknown("split", split, (EVAL, TRAIN), "split")
    return [text for text in strings if split is None or split_of(text) == split]


def of_length(words: Iterable[str], tokens: int, count: Callable[[str], int]) -> list[str]:
    """Those of ``words`` that have ``tokens`` tokens after a space (0: all), in their order; ``count`` counts them."""
    return [word for word in words if not tokens or count(f" {word}") == tokens]


def draw(make: Callable[[], str], split: str | None, taken: set[str] | None = None, what: str = "string") -> str:
    """The first string of ``make`` that is of ``split`` and not taken. Raises InputError when none is found."""
    for _ in range(_TRIES):
        text = make()
        if (taken is None or text not in taken) and of_split([text], split):
            if taken is not None:
                taken.add(text)
            return text
    raise InputError(f"no unused {what} of split {split!r} is left: pass a longer word list or lower the length.")


def number(rng: random.Random, split: str | None, taken: set[str] | None = None, digits: int = 7) -> str:
    """A number of ``digits`` digits that does not begin with zero."""
    low = 10 ** (digits - 1)
    return draw(lambda: str(rng.randint(low, 10 * low - 1)), split, taken, "number")


def integer(rng: random.Random, split: str | None, low: int, high: int, taken: set[str] | None = None) -> str:
    """A number of the closed range ``low`` to ``high``."""
    return draw(lambda: str(rng.randint(low, high)), split, taken, "value")


def uuid4(rng: random.Random, split: str | None, taken: set[str] | None = None) -> str:
    """A version-4 UUID in its 36-character form."""
    return draw(lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)), split, taken, "UUID")


def word_pair(
    rng: random.Random,
    split: str | None,
    first: Sequence[str],
    second: Sequence[str],
    taken: set[str] | None = None,
) -> str:
    """Two words with a hyphen, "silver-mountain". The pair has a split, its words have none."""
    return draw(lambda: f"{rng.choice(first)}-{rng.choice(second)}", split, taken, "pair of words")


def _letters(rng: random.Random, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def variable_name(rng: random.Random, split: str | None, letters: int = 5, taken: set[str] | None = None) -> str:
    """Capital letters: the variables of vt."""
    return draw(lambda: _letters(rng, string.ascii_uppercase, letters), split, taken, "variable name")


def coded_word(rng: random.Random, split: str | None, letters: int = 6, taken: set[str] | None = None) -> str:
    """Small letters: the coded words of fwe."""
    return draw(lambda: _letters(rng, string.ascii_lowercase, letters), split, taken, "coded word")
