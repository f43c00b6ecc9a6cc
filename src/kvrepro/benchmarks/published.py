"""Files that a benchmark publishes, where the user has them: their rows, and the fields of a row with their types."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvrepro.errors import InputError

SUFFIXES = (".jsonl", ".csv", ".parquet")
BATCH = 32  #: rows of a Parquet file that are in memory at a time; a row may hold a whole book


def text_of(path: Path) -> str:
    """The text of a UTF-8 file, line ends as Python reads them. InputError where it is not readable as one."""
    with _readable(path), path.open(encoding="utf-8") as file:
        return file.read()


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends, one in memory at a time. InputError as of :func:`text_of`."""
    with _readable(path), path.open("rb") as file:
        before = 0
        for line in file:
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                error.start += before  # of the file
                raise
            yield text
            before += len(line)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is not UTF-8 (byte {error.start}); save it as UTF-8 or download it again."
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path.") from error


def json_of(text: str, where: str) -> Any:
    """What a JSON text holds; ``where`` names it in the InputError where it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: is not JSON ({error}); download the file again.") from error


def objects(path: Path, columns: list[str] | None = None) -> Iterator[tuple[Any, str]]:
    """Rows of a file of JSON lines, CSV with a header, or Parquet, each with its place in words, read as they are asked
    for; of Parquet only ``columns``, where they are given. InputError where the file is none."""
    if path.suffix == ".parquet":
        for number, row in enumerate(_parquet_rows(path, columns), 1):
            yield {key: value for key, value in row.items() if value is not None}, f"{path}, row {number}"
    elif path.suffix == ".csv":
        for number, row in enumerate(csv.DictReader(io.StringIO(text_of(path), newline="")), 1):
            yield row, f"{path}, row {number}"
    else:
        for number, line in enumerate(lines_of(path), 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield json_of(line, where), where


def all_objects(
    files: Sequence[Path], columns: list[str] | None = None, wanted: Callable[[Any], bool] = lambda row: True
) -> Iterator[tuple[Any, str]]:
    """The ``wanted`` rows of several files, one file after the other. InputError where there is none."""
    empty = True
    for row, where in (each for file in files for each in objects(file, columns)):
        if wanted(row):
            empty = False
            yield row, where
    if empty:
        raise InputError(f"{files[0]}: holds no row; take the published file.")


def _parquet_rows(path: Path, columns: list[str] | None) -> Iterator[dict[str, Any]]:
    try:
        for batch in pq.ParquetFile(path).iter_batches(BATCH, columns=columns):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: is not a readable Parquet file ({error}); download it again.") from error


def parts(stem: Path) -> list[Path]:
    """The files of a data set's part: ``stem`` with one of SUFFIXES, or as the hub divides it into Parquet files
    ("train-00000-of-00002.parquet", or a folder). Empty where there is none."""
    whole = [path for suffix in SUFFIXES if (path := stem.with_name(stem.name + suffix)).is_file()]
    return whole[:1] or sorted(stem.parent.glob(f"{stem.name}-*.parquet")) or sorted(stem.glob("*.parquet"))


class Fields:
    """Fields of one JSON object, each with a type; ``where`` begins the sentence of an error."""

    def __init__(self, data: Any, where: str):
        if not isinstance(data, Mapping):
            raise InputError(f"{where} is not a JSON object but {kind(data)}; take the published file.")
        self.data, self.where = data, where

    def get(self, name: str, types: type | tuple[type, ...], wanted: str) -> Any:
        """A field that must be there and of some types; ``wanted`` names these in words."""
        if self.data.get(name) is None:
            raise InputError(f"{self.where}: field {name!r} is missing; the published format has {wanted} there.")
        value = self.data[name]
        if not isinstance(value, types) or isinstance(value, bool):
            raise InputError(f"{self.where}: field {name!r} must be {wanted}, got {kind(value)} ({short(value)}).")
        return value

    def text(self, name: str) -> str:
        """A field that holds words."""
        value = self.get(name, str, "a text")
        if not value.strip():
            raise InputError(f"{self.where}: field {name!r} is empty; remove the row or restore its text.")
        return value

    def texts(self, name: str, value: Any = None) -> list[str]:
        """A field that holds a list of words, or ``value`` as such a one."""
        value = self.get(name, list, "a list of texts") if value is None else value
        if not value or not all(isinstance(entry, str) and entry.strip() for entry in value):
            raise InputError(f"{self.where}: field {name!r} must be a list of texts, got {short(value)}.")
        return value


def kind(value: Any) -> str:
    """The type of a value, in words."""
    names = {
        str: "a text",
        list: "a list",
        dict: "an object",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


def short(value: Any) -> str:
    """A value as sentences quote it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
