"""An interpolated Witten-Bell n-gram model over token ids: the bar a lab model's perplexity has to pass.

With ``c`` the counts of the training text, ``h`` a context and ``T(h)`` the number of distinct tokens seen after it,

    P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h)),

where ``h'`` is ``h`` without its first token and the model below the unigram is uniform over the vocabulary (Witten and
Bell 1991, in the interpolated form of Chen and Goodman 1998). An unseen context passes on the shorter model unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvrepro.errors import InputError


@dataclass(frozen=True)
class Level:
    """Counts of the n-grams of one order; an n-gram is an integer, its ids read as digits in base ``vocab``."""

    grams: np.ndarray  # [g] int64, sorted
    counts: np.ndarray  # [g] how often each occurs
    contexts: np.ndarray  # [c] int64, sorted: n-grams without their last token
    totals: np.ndarray  # [c] tokens seen after each context
    types: np.ndarray  # [c] distinct tokens seen after each context


@dataclass(frozen=True)
class NGram:
    """A fitted model; ``levels[k]`` holds the (k+1)-grams."""

    vocab: int
    levels: tuple[Level, ...]

    @property
    def order(self) -> int:
        """Longest n-gram, in tokens."""
        return len(self.levels)


def fit(documents: Iterable[Sequence[int]], vocab: int, order: int = 3) -> NGram:
    """Counts n-grams of 1 to ``order`` tokens inside each document (none crosses a border).

    ``documents`` are arrays of ids in [0, vocab). InputError when there is no token or the n-grams do not fit 63 bits.
    """
    if vocab**order >= 2**63:
        raise InputError(f"an n-gram of order {order} over {vocab} tokens does not fit 63 bits; lower the order.")
    arrays = [_checked(ids, vocab) for ids in documents]
    if not sum(map(len, arrays)):
        raise InputError("the n-gram model has no training text; give it at least one token.")
    return NGram(vocab, tuple(_level(arrays, vocab, n) for n in range(1, order + 1)))


def _checked(ids: Sequence[int], vocab: int) -> np.ndarray:
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (array.min() < 0 or array.max() >= vocab):
        raise InputError(f"token ids must lie in [0, {vocab}); found {array.min()} to {array.max()}.")
    return array


def _grams(ids: np.ndarray, vocab: int, n: int) -> np.ndarray:
    """The n-grams of a document as integers, one for each position from n-1 on."""
    length = max(0, len(ids) - n + 1)
    grams = np.zeros(length, dtype=np.int64)
    for k in range(n):
        grams = grams * vocab + ids[k : k + length]
    return grams


def _level(arrays: list[np.ndarray], vocab: int, n: int) -> Level:
    grams, counts = np.unique(np.concatenate([_grams(ids, vocab, n) for ids in arrays]), return_counts=True)
    contexts, first, types = np.unique(grams // vocab, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first) if len(first) else counts
    return Level(grams, counts, contexts, totals, types)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """``values`` of the sorted ``keys`` that equal ``wanted``, 0 for those that are not there."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def probabilities(model: NGram, ids: Sequence[int]) -> np.ndarray:
    """Probability of each token of one document given the up to order-1 tokens before it: [n] float64."""
    array = _checked(ids, model.vocab)
    p = np.full(len(array), 1.0 / model.vocab)
    for n, level in enumerate(model.levels, 1):
        grams = _grams(array, model.vocab, n)
        types = _look_up(level.contexts, level.types, grams // model.vocab)
        totals = _look_up(level.contexts, level.totals, grams // model.vocab)
        counts = _look_up(level.grams, level.counts, grams)
        shorter = p[n - 1 :]
        seen = totals > 0
        p[n - 1 :] = np.where(seen, (counts + types * shorter) / np.where(seen, totals + types, 1), shorter)
    return p


def perplexity(model: NGram, documents: Iterable[Sequence[int]]) -> float:
    """Perplexity per token over all tokens of the documents; InputError when there is none."""
    total, tokens = 0.0, 0
    for ids in documents:
        p = probabilities(model, ids)
        total += np.log(p).sum()
        tokens += len(p)
    if not tokens:
        raise InputError("perplexity needs at least one token.")
    return float(np.exp(-total / tokens))
