"""Short hashes of what a result depends on beside its input files, for Snakemake's ``params``.

A rule that carries them runs again when the content changes, and not when only a date does, as after a git clone.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.registry import Benchmark, benchmark
from kvrepro.data.sources import Folder, Shipped, manifest, source
from kvrepro.files import sha256_file
from kvrepro.labels import documents
from kvrepro.models import registry
from kvrepro.models.fingerprint import fingerprint
from kvrepro.remembered import python_files, remembered


@cache
def weights(model: str) -> str:
    """Identity of a model's weights: a hash of local files, or the hub's name and revision."""
    entry = registry.entry(model)
    if "hub" in entry:
        return f"{entry['hub']}@{entry.get('revision', 'main')}"
    path = Path(entry["path"])
    return fingerprint(path) if (path / "config.json").exists() else "missing"


@cache
def tokenizer(model: str) -> str:
    """Identity of a model's tokenizer."""
    entry = registry.entry(model)
    path = Path(entry.get("path", "")) / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if "path" in entry and path.exists() else weights(model)


def corpus(entry: str | Mapping[str, Any]) -> str:
    """Identity of a label corpus: the checksum of one that ships with the repository, else what the config says of it,
    with the content of a local folder, or of what contexts are made of."""
    if documents.is_formats(entry):
        sources = entry[documents.FORMATS]
        return f"{sources} {texts(benchmark(documents.FORMATS), {'sources': sources})}"
    found = source(entry)
    if isinstance(found, Shipped):
        return manifest()[found.name]["sha256"][:16]
    return f"{found} {_file(found.path)}" if isinstance(found, Folder) else str(found)


def texts(asked: Benchmark, settings: Mapping[str, Any]) -> dict[str, str]:
    """Identity of everything that a benchmark's examples are made of."""
    found = asked.reads(settings).items()
    return {name: _file(text) if isinstance(text, Path) else corpus(text) for name, text in found}


def _file(path: Path) -> str:
    """Hash of a file, or of the names and contents of the files in a folder."""
    if not path.exists():
        return "missing"
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return remembered(["content", str(path)], files, lambda: _contents(path, files))


def _contents(path: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)} {sha256_file(file)}\n".encode())
    return digest.hexdigest()[:16]


def code(paths: Iterable[Path | str]) -> str:
    """Hash of Python files, or of those in folders; comments, docstrings and layout do not count."""
    paths = list(map(str, paths))
    files = python_files(paths)
    return remembered(["code", paths], files, lambda: _code(files))


def _code(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_docstring(body[0]):
                del body[0]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
