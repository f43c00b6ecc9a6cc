"""Everything a training run reads, made once: ``python -m kvrepro.training.lab.prepare --out DATA``.

The folder holds the tokenizer, ``texts.npz`` (token ids of every corpus and split), ``prose.json.xz`` (haystack
sentences of training documents with their token counts), ``words.json``, ``items-<length>.json.xz`` (evaluation items)
and ``ngram.json`` (perplexity of the 3-gram baseline on the held-out documents). A run then starts within seconds.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from tokenizers import Tokenizer

from kvrepro.benchmarks.ruler.definitions import TASKS
from kvrepro.data import corpora, ngram
from kvrepro.errors import command_line
from kvrepro.training.lab.rows import EOS, RowMaker
from kvrepro.training.lab.texts import Texts, heldout_documents, read_texts
from kvrepro.training.lab.tokenizer import save_tokenizer, train_tokenizer

PROSE = ("kjv", "factbook", "lexicon", "pydoc")  # corpora with running sentences: the haystacks of training
WORD_COUNT = 20  # occurrences in the training documents from which on a word may be a key or a list word
SAMPLE_PROMPTS = 1500  # prompts in the tokenizer's training text


class _Characters:
    """Stands in for the tokenizer that is yet to be trained: three characters a token."""

    def encode(self, string: str, add_special_tokens: bool = False):
        return SimpleNamespace(ids=range(len(string) // 3))


def sample_prompts(words: list[str], prose: list[str], count: int) -> Iterator[str]:
    """Prompts of all tasks with their answers, and lists of words."""
    maker = RowMaker(_Characters(), Texts({}, [], [(s, len(s) // 3) for s in prose], words))
    rng = random.Random("lab tokenizer")
    for i in range(count):
        sample = maker.sample(rng, TASKS[i % len(TASKS)], 500 if i % 2 else 1100)
        if sample:
            yield "".join(s for piece in sample for s, _ in piece)
    for _ in range(count // 30):
        yield " ".join(rng.sample(words, 200))


def write_texts(
    folder: Path, tokenizer: Tokenizer, documents: dict[str, dict[str, list[str]]], prose: list[str], words: list[str]
) -> None:
    """Tokenises ``documents`` (by corpus and split) and the haystack sentences."""

    def encode(texts: list[str]) -> list[list[int]]:
        return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    arrays = {}
    for name, splits in documents.items():
        arrays[f"train/{name}"] = np.array([t for ids in encode(splits["train"]) for t in (*ids, EOS)], np.uint16)
        held = encode(splits["heldout"])
        arrays[f"heldout/{name}"] = np.array([t for ids in held for t in ids], np.uint16)
        arrays[f"heldout/{name}/ends"] = np.cumsum([len(ids) for ids in held])
    np.savez(folder / "texts.npz", **arrays)
    counts = [len(ids) for ids in encode([" " + sentence for sentence in prose])]
    (folder / "prose.json.xz").write_bytes(lzma.compress(json.dumps(list(zip(prose, counts, strict=True))).encode()))
    (folder / "words.json").write_text(json.dumps(words))


def write_ngram(folder: Path, vocabulary: int) -> None:
    """Perplexity of an interpolated 3-gram, fitted on all training documents, on each corpus' held-out documents."""
    model = ngram.fit(read_texts(folder).streams.values(), vocabulary, order=3)
    found = {name: round(ngram.perplexity(model, texts), 3) for name, texts in heldout_documents(folder).items()}
    (folder / "ngram.json").write_text(json.dumps(found, indent=1) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=4096)
    args = parser.parse_args(argv)
    words = corpora.common_words(WORD_COUNT)
    prose = [s for corpus in PROSE for s in corpora.sentences(corpus, "train")]
    documents = {name: {s: corpora.documents(name, s) for s in corpora.SPLITS} for name in corpora.names()}
    texts = [text for splits in documents.values() for text in splits["train"]]
    tokenizer = train_tokenizer([*texts, *sample_prompts(words, prose[:3000], SAMPLE_PROMPTS)], args.vocabulary)
    save_tokenizer(tokenizer, args.out)
    write_texts(args.out, tokenizer, documents, prose, words)
    write_ngram(args.out, args.vocabulary)


if __name__ == "__main__":
    command_line(main)
