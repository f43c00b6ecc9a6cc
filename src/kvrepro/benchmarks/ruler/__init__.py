"""RULER: 13 synthetic long-context tasks with the official definitions, any length, any tokenizer.

Definitions and quoted texts are in ``templates.yaml``. ``generate`` makes items, ``score`` judges an answer,
``sources`` says where text comes from, ``draws`` which strings belong to evaluation. What differs from the official
scripts: items hold the most that fits rather than steps of a fixed size; keys and values of an item are distinct; draws
are seeded per item; sentences are cut by punctuation; documents in qa come in an order drawn per item.
"""

from kvrepro.benchmarks.ruler.definitions import TASKS
from kvrepro.benchmarks.ruler.generate import generate
from kvrepro.benchmarks.ruler.prompts import (
    MANIFEST_COLUMNS,
    read_manifest,
    read_prompts,
    write_manifest,
    write_prompts,
)
from kvrepro.benchmarks.ruler.score import score
from kvrepro.benchmarks.ruler.sources import Sources, offline, sentences, with_files

__all__ = [
    "MANIFEST_COLUMNS",
    "TASKS",
    "Sources",
    "generate",
    "offline",
    "read_manifest",
    "read_prompts",
    "score",
    "sentences",
    "with_files",
    "write_manifest",
    "write_prompts",
]
