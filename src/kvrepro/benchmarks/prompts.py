"""Examples on disk: one JSONL file a task, and a manifest that identifies every prompt by the hash of its token ids.

A line holds an example, the number of lines of its file and a SHA-256 of both, so that a file that was cut or changed
is noticed when it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from kvrepro.benchmarks.example import Example, Question, Sampling, render
from kvrepro.errors import InputError
from kvrepro.files import atomic

if TYPE_CHECKING:
    from kvrepro.models.loading import LoadedModel

MANIFEST_COLUMNS = ("task", "item", "seed", "length", "prompt_tokens", "text_sha256", "token_sha256")


def write_prompts(examples: Sequence[Example], path: str | Path) -> None:
    """Write examples as JSON lines, atomically. Raises InputError when there are none."""
    if not examples:
        raise InputError(f"{path}: there are no examples to write; ask for at least one item.")
    with atomic(Path(path)) as temporary:
        temporary.write_text("".join(_line(example, len(examples)) for example in examples), encoding="utf-8")


def read_prompts(path: str | Path) -> list[Example]:
    """The examples of a file, equal to those written. Raises InputError naming file and line for anything else."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); make it anew.") from error
    examples, total = [], len(lines)
    for number, line in enumerate(lines, 1):
        try:
            example, total = _parse(line)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: truncated or corrupt ({error}); make the file anew.") from error
        examples.append(example)
    if not examples or len(examples) != total:
        raise InputError(f"{path}, line {len(examples)}: the file ends here, of {total or 'its'} lines; make it anew.")
    return examples


def read_contexts(path: str | Path, lm: LoadedModel, number: int) -> list[list[int]]:
    """Token ids of the contexts of the first ``number`` examples of a file, as a model is given them."""
    return [render(example, lm.tokenizer, lm.chat).prefix for example in read_prompts(path)[:number]]


def write_manifest(examples: Iterable[Example], tokenizer, path: str | Path, chat: bool = False) -> pd.DataFrame:
    """Write the manifest of examples of any tasks as CSV, atomically, and return it (see ``MANIFEST_COLUMNS``).

    "length" counts prompt and generated tokens as the benchmark does, "prompt_tokens" the prompt alone; the hashes are
    those of ``render``.
    """
    rows = []
    for example in examples:
        prompt = render(example, tokenizer, chat)
        tokens = len(prompt.prefix) + sum(map(len, prompt.questions))
        generated = sum(question.max_new_tokens for question in example.questions)
        hashes = (prompt.text_sha256, prompt.token_sha256)
        rows.append((example.task, example.item, example.seed, tokens + generated, tokens, *hashes))
    manifest = pd.DataFrame(rows, columns=list(MANIFEST_COLUMNS))
    with atomic(Path(path)) as temporary:
        manifest.to_csv(temporary, index=False)
    return manifest


def read_manifest(path: str | Path) -> pd.DataFrame:
    """The manifest as written. Raises InputError when it is missing or has other columns."""
    try:
        manifest = pd.read_csv(path, dtype={"text_sha256": str, "token_sha256": str})
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a manifest ({error}); make it anew.") from error
    if tuple(manifest.columns) != MANIFEST_COLUMNS or manifest.isna().any(axis=None):
        raise InputError(f"{path}: is not a complete manifest of {', '.join(MANIFEST_COLUMNS)}; make it anew.")
    return manifest


def _canonical(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def _line(example: Example, total: int) -> str:
    fields = asdict(example)
    for question in fields["questions"]:
        if question["sampling"] is None:
            del question["sampling"]
    content = {"example": fields, "lines": total}
    return _canonical(content | {"sha256": _checksum(content)}) + "\n"


def _parse(line: str) -> tuple[Example, int]:
    content = json.loads(line)
    recorded = content.pop("sha256")
    if _checksum(content) != recorded:
        raise ValueError("its content differs from its checksum")
    fields = content["example"]
    return Example(**(fields | {"questions": tuple(map(_question, fields["questions"]))})), content["lines"]


def _question(entry: dict[str, Any]) -> Question:
    sampling = Sampling(**entry["sampling"]) if "sampling" in entry else None
    return Question(**entry | {"references": tuple(entry["references"]), "sampling": sampling})
