"""Where documents come from: the corpora of the repository, a local folder of JSONL or Parquet files, or the hub.

A source has a ``name`` and gives its documents as a tuple of texts, always in the same order. Paper-scale corpora
(FineWeb-Edu for WG-KV Appendix C, the Nemotron pre-training sample for GateSight Appendix C) are distributed as JSONL
or Parquet files with a text column, which is what :class:`Folder` and :class:`Hub` read.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from kvrepro.errors import InputError, unknown

TEXT = Path(__file__).parent / "text"
SEPARATOR = "\n\f\n"


@cache
def manifest(folder: Path = TEXT) -> dict[str, dict]:
    """Entries of ``manifest.yaml``: kind, sources, licence, documents, sizes in bytes and SHA-256, by corpus name."""
    path = folder / "manifest.yaml"
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except OSError:
        raise InputError(f"{path} is missing; restore the folder of text corpora from the repository.") from None


@dataclass(frozen=True)
class Shipped:
    """A corpus of the repository, checked against the manifest whenever it is read."""

    name: str
    folder: Path = TEXT

    def texts(self) -> tuple[str, ...]:
        """All documents, in the order of the file; InputError when the file is missing or not the one recorded."""
        entries = manifest(self.folder)
        if self.name not in entries:
            raise unknown("corpus", self.name, entries, "corpora")
        path = self.folder / f"{self.name}.txt.xz"
        try:
            raw = lzma.decompress(path.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{path} is missing; restore it from the repository.") from None
        except (lzma.LZMAError, EOFError):
            raise InputError(f"{path} is corrupt (not a complete xz file); restore it from the repository.") from None
        if hashlib.sha256(raw).hexdigest() != entries[self.name]["sha256"]:
            raise InputError(f"{path} is not the text that the manifest records; restore both from the repository.")
        return tuple(raw.decode("utf-8").removesuffix("\n").split(SEPARATOR))


@dataclass(frozen=True)
class Folder:
    """JSONL (``.jsonl``, ``.json``) and Parquet files under a local folder, in the order of their names.

    ``column`` is the field that holds the text; ``rows`` the most documents to read, since part of a large download
    will do; documents with a string of ``exclude`` are left out (GateSight Appendix C leaves out those that name
    a long-context benchmark).
    """

    name: str
    path: Path
    column: str = "text"
    rows: int | None = None
    exclude: tuple[str, ...] = ()

    def texts(self) -> tuple[str, ...]:
        """Non-empty documents; InputError when the folder, its files or the column is missing."""
        if not self.path.is_dir():
            raise InputError(f"corpus {self.name!r}: the folder {self.path} does not exist; download the files there.")
        files = sorted(p for p in self.path.rglob("*") if p.suffix in (".jsonl", ".json", ".parquet"))
        if not files:
            raise InputError(f"corpus {self.name!r}: {self.path} holds no .jsonl, .json or .parquet file.")
        readers = ((_parquet if file.suffix == ".parquet" else _jsonl)(file, self.column) for file in files)
        return _wanted(chain.from_iterable(readers), self.exclude, self.rows)


def _wanted(texts: Iterable[str | None], exclude: tuple[str, ...], rows: int | None) -> tuple[str, ...]:
    """The first ``rows`` texts that are not empty and contain no string of ``exclude``."""
    return tuple(islice((t for t in texts if t and not any(word in t for word in exclude)), rows))


def _jsonl(path: Path, column: str) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                raise InputError(f"{path}, line {number} is not JSON; the file must hold one object a line.") from None
            if column not in row:
                raise InputError(f"{path}, line {number} has no column {column!r}; it has {', '.join(sorted(row))}.")
            yield row[column]


def _parquet(path: Path, column: str) -> Iterator[str]:
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        raise InputError(f"{path} is not a complete Parquet file; download it again.") from None
    if column not in file.schema_arrow.names:
        raise InputError(f"{path} has no column {column!r}; it has {', '.join(sorted(file.schema_arrow.names))}.")
    for batch in file.iter_batches(batch_size=1024, columns=[column]):
        yield from batch.column(0).to_pylist()


@dataclass(frozen=True)
class Hub:
    """The first ``rows`` documents of a data set on the Hugging Face hub, streamed; read only if a config names it."""

    name: str
    path: str
    subset: str | None = None
    split: str = "train"
    column: str = "text"
    rows: int | None = 10_000
    exclude: tuple[str, ...] = ()

    def texts(self) -> tuple[str, ...]:
        """Non-empty documents; InputError without the ``datasets`` package or the column."""
        try:
            import datasets
        except ImportError:
            raise InputError(f"corpus {self.name!r} is on the hub: install the package datasets to read it.") from None
        rows = datasets.load_dataset(self.path, self.subset, split=self.split, streaming=True)

        def texts() -> Iterator[str]:
            for row in rows:
                if self.column not in row:
                    raise InputError(f"{self.path} has no column {self.column!r}; it has {', '.join(sorted(row))}.")
                yield row[self.column]

        return _wanted(texts(), self.exclude, self.rows)


Source = Shipped | Folder | Hub
KINDS = {"folder": Folder, "hub": Hub}


def source(entry: str | Mapping | Source) -> Source:
    """The source an entry of the config names.

    A string is a corpus of the repository. A mapping has a ``name`` and either ``folder`` (a local path) or ``hub`` (a
    data set's name), and the other fields of :class:`Folder` or :class:`Hub`.
    """
    if isinstance(entry, Source):
        return entry
    if isinstance(entry, str):
        return Shipped(entry)
    options = dict(entry)
    kinds = [kind for kind in KINDS if kind in options]
    if len(kinds) != 1 or "name" not in options:
        raise InputError(f"corpora: {options} needs a name and exactly one of folder and hub.")
    kind = kinds[0]
    path = options.pop(kind)
    fields = KINDS[kind].__dataclass_fields__
    for key in options:
        if key not in fields or key == "path":  # the path is given by the kind itself
            raise unknown("option", key, set(fields) - {"path"}, f"corpora: {options['name']}")
    options["exclude"] = tuple(options.get("exclude", ()))
    return KINDS[kind](path=Path(path) if kind == "folder" else path, **options)
