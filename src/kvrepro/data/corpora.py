"""Documents of the corpora, their split, and pieces of them in tokens.

Every function takes a corpus as the config names it (:func:`kvrepro.data.sources.source`): the name of one that ships
with the repository, or a mapping for a local folder or the hub.

A document belongs to the held-out split by the MD5 of its text, so the split does not depend on order or on what else
is in the corpus, and models, estimators and tests agree on it without a file.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np

from kvrepro.data.sources import Source, manifest, source
from kvrepro.errors import InputError, unknown

Corpus = str | Mapping | Source
SPLITS = ("train", "heldout")
SHARE = 12  # one document in twelve is held out ...
AT_LEAST = 12  # ... but never fewer documents than this ...
AT_LEAST_CHARACTERS = 60_000  # ... nor less text


def names() -> list[str]:
    """Names of the corpora that ship with the repository."""
    return list(manifest())


def documents(corpus: Corpus, split: str) -> list[str]:
    """The documents of one split ('train' or 'heldout'), in the order of the corpus.

    InputError when the corpus is missing, corrupt or too small to be split.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS, "documents")
    return list(_splits(source(corpus))[split])


@lru_cache(maxsize=32)
def _splits(src: Source) -> dict[str, tuple[str, ...]]:
    texts = tuple(dict.fromkeys(src.texts()))
    held = held_out(texts)
    if len(held) * 2 > len(texts):
        raise InputError(
            f"corpus {src.name!r} has {len(texts)} documents with {sum(map(len, texts)):,} characters, too few to hold "
            f"out {AT_LEAST} documents and {AT_LEAST_CHARACTERS:,} characters; add text or leave it out."
        )
    return {
        "train": tuple(t for t in texts if t not in held),
        "heldout": tuple(t for t in texts if t in held),
    }


def held_out(texts: Iterable[str]) -> set[str]:
    """The texts to hold out: those whose MD5 is divisible by SHARE, then the next smallest until there are enough."""

    def order(text: str) -> tuple[int, int]:
        number = int(hashlib.md5(text.encode()).hexdigest(), 16)
        return number % SHARE, number

    held: set[str] = set()
    characters = 0
    for text in sorted(texts, key=order):
        if order(text)[0] and len(held) >= AT_LEAST and characters >= AT_LEAST_CHARACTERS:
            break
        held.add(text)
        characters += len(text)
    return held


SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)]))\s+(?=[\"'“‘(]?[A-Z])")
SENTENCE = re.compile(r"[\"'“‘(]?[A-Z].{,597}[.!?][\"'”’)]?")


def sentences(corpus: Corpus, split: str) -> list[str]:
    """The sentences of a split, in order, each on one line.

    Lines of a paragraph are joined first. Kept are parts of at least four words and at most 600 characters that begin
    with a capital letter and end as a sentence does, which leaves out most headings, lists and code.
    """
    found = []
    for document in documents(corpus, split):
        for paragraph in re.split(r"\n\s*\n", document):
            parts = SENTENCE_END.split(" ".join(paragraph.split()))
            found += [part for part in parts if SENTENCE.fullmatch(part) and part.count(" ") >= 3]
    return found


WORD = re.compile(r"(?<![\w'’.-])[a-z]{4,9}(?![\w'’-])")


def common_words(min_count: int, split: str = "train", corpora: Iterable[Corpus] | None = None) -> list[str]:
    """Lower-case words of 4 to 9 letters with at least ``min_count`` occurrences, by falling count, then alphabet.

    They are counted over ``corpora`` (all that ship with the repository when None) as they stand in the text: parts of
    identifiers, of hyphenated words and of names with capitals do not count.
    """
    counts: Counter[str] = Counter()
    for corpus in names() if corpora is None else corpora:
        for document in documents(corpus, split):
            counts.update(WORD.findall(document))
    return sorted((w for w, c in counts.items() if c >= min_count), key=lambda w: (-counts[w], w))


def cut(
    corpus: Corpus,
    tokenizer,
    lengths: tuple[int, int] = (750, 1250),
    n: int = 64,
    seed: int = 0,
    split: str = "train",
    join: bool = False,
) -> list[list[int]]:
    """``n`` pieces of documents as token ids, each of a length drawn uniformly between the two bounds (both included).

    A piece starts at the beginning of a document or of a line and lies within one document; no two overlap. With
    ``join`` consecutive short documents of the corpus are joined by an empty line until the longest piece fits, as the
    long sets (2K to 8K tokens, GateSight Appendix C) need. ``tokenizer`` is a Hugging Face tokenizer.

    The result depends on the corpus, the tokenizer, the bounds, ``n``, ``seed`` and ``split`` only. InputError when the
    split does not hold that much text.
    """
    low, high = lengths
    if not 1 <= low <= high:
        raise InputError(f"lengths: {low} to {high} tokens is no range; give 1 <= shortest <= longest.")
    src = source(corpus)
    texts = documents(src, split)
    rate = _characters_per_token(texts, tokenizer)
    if join:
        texts = list(_joined(texts, int(1.2 * rate * high)))
    rng = np.random.default_rng([seed, int(hashlib.md5(f"{src.name}/{split}".encode()).hexdigest()[:8], 16)])
    order = rng.permutation(len(texts))
    free = [0] * len(texts)  # first character of each document that no piece has used
    pieces: list[list[int]] = []
    turn = 0
    for want in rng.integers(low, high + 1, n):
        for step in range(len(order)):
            index = order[(turn + step) % len(order)]
            start = _start(texts[index], free[index], int(1.2 * rate * want), rng)
            found = _encode_from(texts[index], start, int(want), rate, tokenizer)
            if found is None and start > free[index]:
                start = free[index]
                found = _encode_from(texts[index], start, int(want), rate, tokenizer)
            if found is not None:
                ids, free[index] = found
                pieces.append(ids)
                turn = (turn + step + 1) % len(order)
                break
        else:
            raise InputError(
                f"corpus {src.name!r}, split {split!r}: only {len(pieces)} pieces of {low} to {high} tokens fit, {n} "
                f"were asked for; ask for fewer or shorter ones{'' if join else ', or join documents'}."
            )
    return pieces


def _characters_per_token(texts: list[str], tokenizer) -> float:
    sample = "\n\n".join(text[:2000] for text in texts[:: max(1, len(texts) // 16)])
    return len(sample) / max(1, len(tokenizer.encode(sample, add_special_tokens=False)))


def _joined(texts: list[str], characters: int) -> Iterator[str]:
    """Consecutive documents joined until each has at least ``characters`` characters (the last may have fewer)."""
    group: list[str] = []
    for text in texts:
        group.append(text)
        if sum(map(len, group)) >= characters:
            yield "\n\n".join(group)
            group = []
    if group:
        yield "\n\n".join(group)


def _start(text: str, free: int, need: int, rng: np.random.Generator) -> int:
    """A start at or after ``free``: often ``free`` itself, else the next line start after a random skip.

    The skip is there so that not all pieces begin with what opens a document; it is at most ``need`` characters, to
    waste little text.
    """
    slack = min(len(text) - free - need, need)
    skip = int(rng.integers(0, need + 1))
    if slack <= 0 or skip > slack:
        return free
    line = text.find("\n", free + skip)
    return free if line < 0 else len(text) - len(text[line:].lstrip("\n"))


def _encode_from(text: str, start: int, want: int, rate: float, tokenizer) -> tuple[list[int], int] | None:
    """The first ``want`` tokens from ``start`` and the line start after them; None when the text is too short."""
    margin = 16  # tokens; the last ones of a window may differ from those of the whole text
    size = int(1.3 * rate * (want + margin))
    while len(text) - start >= want * 0.5:
        window = text[start : start + size]
        ids = tokenizer.encode(window, add_special_tokens=False)
        whole = start + size >= len(text)
        if len(ids) >= want + (0 if whole else margin):
            used = len(tokenizer.decode(ids[:want], clean_up_tokenization_spaces=False))
            line = text.find("\n", start + used)
            return ids[:want], len(text) if line < 0 else line + 1
        if whole:
            return None
        size *= 2
    return None
