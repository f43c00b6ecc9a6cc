"""The prepared texts of training (see ``prepare``): token streams, haystack sentences, words."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from kvrepro.benchmarks.ruler import draws
from kvrepro.errors import InputError

SHARE_EXPONENT = 0.7  # a corpus is drawn in proportion to its size to this power, so that small ones are not swamped


@dataclass(frozen=True)
class Texts:
    """What rows are made of. ``streams`` are token ids by corpus, ``prose`` sentences with token counts, in order."""

    streams: dict[str, np.ndarray]
    shares: list[float]
    prose: list[tuple[str, int]]
    words: list[str]

    @cached_property
    def list_words(self) -> list[str]:
        """The words that a list of cwe may hold in training."""
        return draws.of_split(self.words, draws.TRAIN)


def corpus_shares(sizes: list[int]) -> list[float]:
    """Probability of each corpus when plain text is drawn."""
    weights = np.array(sizes, float) ** SHARE_EXPONENT
    return (weights / weights.sum()).tolist()


def read_texts(folder: Path) -> Texts:
    """Reads what ``prepare`` wrote; InputError when the folder is not one."""
    try:
        with np.load(folder / "texts.npz") as arrays:
            streams = {key.removeprefix("train/"): arrays[key] for key in arrays if key.startswith("train/")}
        prose = json.loads(lzma.decompress((folder / "prose.json.xz").read_bytes()))
        words = json.loads((folder / "words.json").read_text())
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        raise InputError(
            f"{folder}: no prepared texts ({error}); run python -m kvrepro.training.lab.prepare."
        ) from error
    shares = corpus_shares([len(s) for s in streams.values()])
    return Texts(streams, shares, [(sentence, count) for sentence, count in prose], words)


def heldout_documents(folder: Path) -> dict[str, list[np.ndarray]]:
    """Token ids of the held-out documents by corpus."""
    with np.load(folder / "texts.npz") as arrays:
        found = {}
        for key in arrays:
            if key.startswith("heldout/") and not key.endswith("/ends"):
                found[key.removeprefix("heldout/")] = np.split(arrays[key], arrays[key + "/ends"][:-1])
    return found
