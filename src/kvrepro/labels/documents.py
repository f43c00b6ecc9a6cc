"""Documents to label: pieces of texts, or contexts in RULER's formats.

The papers' models look far back in any text. A lab model does so only in the formats that it learned, so on texts alone
nothing far back is of use to it, whatever it continues them with (GateSight §2 has the model write its own future). Of
the contexts no question is asked either; their strings and their text are those of no evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, cycle, islice
from typing import Any

import numpy as np

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.ruler.draws import TRAIN
from kvrepro.data.corpora import SPLITS, cut
from kvrepro.data.sources import source
from kvrepro.errors import InputError

FORMATS = "ruler"  #: the key of an entry whose documents are contexts: the sources of ``benchmarks.ruler``
SEEDS = 1 << 30  #: of the contexts of a split, beyond those of benchmark items


def name(entry: Any) -> str:
    """The name of a label corpus, as its files and rows have it."""
    return entry["name"] if is_formats(entry) else source(entry).name


def is_formats(entry: Any) -> bool:
    """Whether an entry of ``labels.corpora`` asks for contexts."""
    return isinstance(entry, Mapping) and FORMATS in entry


def documents(
    entry: Any, tokenizer: Any, lengths: tuple[int, int], n: int, seed: int, split: str = "train"
) -> list[list[int]]:
    """``n`` documents of a label corpus as token ids.

    Those of a text are pieces of between ``lengths`` tokens (:func:`kvrepro.data.corpora.cut`, short documents joined).
    Contexts, of all tasks in turn, are shorter: prompts of such a length leave room for a question and its answer, of
    which there is none here. By lab-hybrid's tokenizer a context lacks 80 to 280 tokens of its length: with 750 to
    1,250 asked, contexts have 500 to 1,170, 860 on average. InputError when the text is too short, or no task fits the
    length.
    """
    if is_formats(entry):
        return _contexts(entry, tokenizer, lengths, n, seed, split)
    return cut(entry, tokenizer, lengths, n, seed, split, join=True)


def longer(corpora: Sequence[Any], tokenizer: Any, tokens: int, n: int, seed: int) -> list[list[int]]:
    """``n`` documents of ``tokens`` tokens, of all label corpora in turn, from the held-out split: estimators are
    trained on documents of the other one (GateSight §4.1, Appendix C)."""
    each = math.ceil(n / len(corpora))
    pieces = [documents(entry, tokenizer, (tokens, tokens), each, seed, "heldout") for entry in corpora]
    return list(islice(chain.from_iterable(zip(*pieces, strict=True)), n))


def _contexts(
    entry: Mapping[str, Any], tokenizer: Any, lengths: tuple[int, int], n: int, seed: int, split: str
) -> list[list[int]]:
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    first = (1 + SPLITS.index(split)) * SEEDS
    sources = ruler.from_settings(entry[FORMATS], tokenizer, split=TRAIN)
    tasks = cycle(rng.permutation(list(ruler.TASKS)).tolist())
    found: list[list[int]] = []
    for want in rng.integers(lengths[0], lengths[1] + 1, n).tolist():
        number = first + int(rng.integers(SEEDS))
        for task in islice(tasks, len(ruler.TASKS)):
            try:
                example = ruler.generate(task, 1, want, tokenizer, number, sources, False)[0]
            except InputError:  # the task needs a longer prompt
                continue
            found.append(render(example, tokenizer).prefix)
            break
        else:
            raise InputError(f"labels.corpora: {entry['name']!r}: no task of RULER fits {want} tokens; lengthen them.")
    return found
