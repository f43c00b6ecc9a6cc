"""Rows of tokens for training and validation, each a pure function of its source, the seed and its number.

A source is a mapping with a ``kind``, a ``share`` (1 unless given) and what the kind takes:

* ``text``: ``corpora`` as :mod:`kvrepro.data.sources` names them, and a ``prompt`` before each row (Appendix C). A row
  is a run of tokens from a random line of a random corpus.
* ``traces``: the same, but a row begins where a document begins, as reasoning traces need it (Appendix C's second
  source), and has no prompt unless one is given.
* ``ruler``: contexts of the benchmark's ``tasks`` (all unless given) with question and answer, of strings and text that
  no evaluation uses; ``prose``, ``word_count`` and ``list_word_tokens`` as in the section ``ruler.sources``. For models
  whose only long-range behaviour are these formats, as the lab models'.
* ``registers``: programs of so many ``registers`` with their trace, as the benchmark reasoning asks them, with names
  that no evaluation uses; rows are filled up with ``prose``. For lab models that have learned them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.example import Example, render
from kvrepro.benchmarks.reasoning import registers
from kvrepro.benchmarks.ruler.draws import TRAIN
from kvrepro.data import corpora
from kvrepro.data.sources import source as corpus_source
from kvrepro.errors import InputError, unknown
from kvrepro.models.chat import around_user_turn
from kvrepro.training.gates.recipe import GateRecipe
from kvrepro.training.lab.evaluation import draft

PROMPT = "Please analyze and summarize the following text:\n\n"  # Appendix C, quoted
SPLITS = {"train": 0, "heldout": 1}
CHARACTERS = 8  #: of text that surely give a token, or else more are read
TRIES = 20  #: tasks that are tried until one fits the length of a row


def _encode(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@dataclass
class Texts:
    """Documents of some corpora; see the module's ``text`` and ``traces``. Text is tokenised when a row asks for it."""

    corpora: list[list[str]]
    tokenizer: Any
    whole: bool  #: a row begins where a document begins
    head: list[int]
    tail: list[int]

    def row(self, rng: np.random.Generator, length: int) -> list[int]:
        """``length`` tokens: prompt, text, and what a chat template closes a turn with. A document that ends is
        followed by the next."""
        need = length - len(self.head) - len(self.tail)
        if need < 1:
            raise InputError(f"write_gates.lengths: {length} tokens leave no room beside the prompt; lengthen rows.")
        documents = self.corpora[rng.integers(len(self.corpora))]
        ends = np.cumsum([len(text) for text in documents])
        place = int(rng.integers(ends[-1]))
        number = int(np.searchsorted(ends, place, side="right"))
        text = documents[number]
        start = 0 if self.whole else text.rfind("\n", 0, place - int(ends[number]) + len(text)) + 1
        ids: list[int] = []
        while len(ids) < need:
            piece = documents[number % len(documents)][start : start + CHARACTERS * (need - len(ids)) + CHARACTERS]
            ids += _encode(self.tokenizer, piece)
            start += len(piece)
            if start == len(documents[number % len(documents)]):
                ids.append(self.tokenizer.eos_token_id)
                number, start = number + 1, 0
        return [*self.head, *ids[:need], *self.tail]


def texts(tokenizer, chat: bool, split: str, names: list, prompt: str, whole: bool) -> Texts:
    """Read corpora."""
    if not names:
        raise InputError("write_gates.sources: a source of text needs corpora; name at least one.")
    before, after = around_user_turn(tokenizer) if chat else ("", "")
    head, tail = _encode(tokenizer, before + prompt), _encode(tokenizer, after)
    documents = [corpora.documents(corpus_source(entry), split) for entry in names]
    return Texts(documents, tokenizer, whole, head, tail)


@dataclass
class Formats:
    """Benchmark contexts with question and answer; a row is filled up with text."""

    tokenizer: Any
    chat: bool
    tasks: tuple[str, ...]
    sources: ruler.Sources
    filler: Texts
    offset: int  #: of the seeds, so that splits draw other items

    def row(self, rng: np.random.Generator, length: int) -> list[int]:
        """``length`` tokens."""
        for _ in range(TRIES):
            task, seed = self.tasks[rng.integers(len(self.tasks))], self.offset + int(rng.integers(1 << 30))
            try:
                example = ruler.generate(task, 1, length, self.tokenizer, seed, self.sources, self.chat)[0]
            except InputError:  # the task needs a longer row
                continue
            return answered(example, draft(task, example.questions[0].references), self, rng, length)
        raise InputError(f"write_gates.sources: none of {', '.join(self.tasks)} fits {length} tokens; lengthen rows.")


@dataclass
class Programs:
    """Register programs with their trace; a row is filled up with text."""

    tokenizer: Any
    chat: bool
    registers: int
    filler: Texts
    offset: int  #: of the seeds, so that splits draw other items

    def row(self, rng: np.random.Generator, length: int) -> list[int]:
        """``length`` tokens."""
        seed = self.offset + int(rng.integers(1 << 30))
        example = registers.generate(1, length, self.registers, self.tokenizer, seed, TRAIN, self.chat)[0]
        return answered(example, example.questions[0].references[1], self, rng, length)


def answered(
    example: Example, answer: str, source: Formats | Programs, rng: np.random.Generator, length: int
) -> list[int]:
    """``length`` tokens: an example's prompt and its answer, and then text."""
    prompt, ids = render(example, source.tokenizer, source.chat), _encode(source.tokenizer, answer)
    ids = [*prompt.prefix, *prompt.questions[0], *ids, source.tokenizer.eos_token_id][:length]
    rest = length - len(ids)
    return ids + (source.filler.row(rng, rest) if rest else [])


def programs(tokenizer, chat: bool, split: str, registers: int, prose: str) -> Programs:
    """The ``registers`` source."""
    filler = texts(tokenizer, False, split, [prose], "", whole=False)
    return Programs(tokenizer, chat, registers, filler, offset=SPLITS[split] << 30)


def formats(tokenizer, chat: bool, split: str, prose: str, word_count: int, list_word_tokens: int, tasks=None):
    """The ``ruler`` source."""
    settings = {"prose": prose, "word_count": word_count, "list_word_tokens": list_word_tokens}
    made = ruler.from_settings(settings, tokenizer, split=TRAIN)
    filler = texts(tokenizer, False, split, [prose], "", whole=False)
    for task in tasks or ():
        if task not in ruler.TASKS:
            raise unknown("RULER task", task, ruler.TASKS, "write_gates.sources")
    return Formats(tokenizer, chat, tuple(tasks or ruler.TASKS), made, filler, offset=SPLITS[split] << 30)


KINDS = {
    "text": lambda tokenizer, chat, split, corpora, prompt=PROMPT: texts(
        tokenizer, chat, split, corpora, prompt, whole=False
    ),
    "traces": lambda tokenizer, chat, split, corpora, prompt="": texts(
        tokenizer, chat, split, corpora, prompt, whole=True
    ),
    "ruler": formats,
    "registers": programs,
}


def read_source(entry: Mapping[str, Any], tokenizer, chat: bool, split: str) -> Texts | Formats | Programs:
    """One source of a recipe; InputError for an unknown kind or option."""
    options = {k: v for k, v in entry.items() if k not in ("kind", "share")}
    if entry.get("kind") not in KINDS:
        raise unknown("kind", entry.get("kind"), KINDS, "write_gates.sources")
    try:
        return KINDS[entry["kind"]](tokenizer, chat, split, **options)
    except TypeError as error:
        reason = str(error).split(") ")[-1]
        raise InputError(f"write_gates.sources, kind {entry['kind']!r}: {reason}.") from error


class Rows(Dataset):
    """Batches of a run by step, int32 ``[rows, length]``; row ``i`` of a step has draws of its own."""

    def __init__(self, recipe: GateRecipe, tokenizer, chat: bool, split: str = "train"):
        self.recipe, self.split = recipe, split
        self.sources = [read_source(entry, tokenizer, chat, split) for entry in recipe.sources]
        shares = np.array([float(entry.get("share", 1)) for entry in recipe.sources])
        if not len(shares) or (shares < 0).any() or shares.sum() == 0:
            raise InputError("write_gates.sources: name at least one source, with shares of at least 0.")
        self.shares = shares / shares.sum()
        self.lengths = recipe.schedule()

    def row(self, step: int, number: int, length: int) -> list[int]:
        """One row."""
        rng = np.random.default_rng([self.recipe.seed, 2 + SPLITS[self.split], step, number, length])
        return self.sources[rng.choice(len(self.sources), p=self.shares)].row(rng, length)

    def __len__(self) -> int:
        return self.recipe.steps

    def __getitem__(self, step: int) -> np.ndarray:
        length = int(self.lengths[step])
        count = max(1, self.recipe.batch_tokens // length)
        return np.array([self.row(step, i, length) for i in range(count)], np.int32)

    def batches(self, start: int, workers: int) -> Iterator[np.ndarray]:
        """Batches of the steps from ``start`` on, in order, made ahead by ``workers`` processes (0: in this one)."""
        return iter(
            DataLoader(
                self,
                batch_size=None,
                sampler=range(start, self.recipe.steps),
                num_workers=workers,
                collate_fn=_as_is,
                prefetch_factor=8 if workers else None,
                multiprocessing_context="spawn" if workers else None,
            )
        )


def _as_is(batch):
    return batch
