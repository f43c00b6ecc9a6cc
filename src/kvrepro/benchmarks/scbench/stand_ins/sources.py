"""Where stand-ins take text from: words, sentences and functions of the corpora of the repository."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from kvrepro.benchmarks.ruler.draws import EVAL, TRAIN
from kvrepro.data import corpora
from kvrepro.errors import InputError, unknown

CODE = "stdlib"
LANG = "python"
FEWEST_LINES, MOST_CHARACTERS = 4, 1200  # of a function


@dataclass(frozen=True)
class Function:
    """A function as it stands in its file, and the first sentence of its documentation where it has some."""

    name: str
    code: str
    description: str


@dataclass(frozen=True)
class Sources:
    """``words`` for keys and labels, ``prose`` sentences, ``functions`` that may be asked for, ``more_functions`` that
    fill a repository. ``split`` limits the drawn strings as RULER's generators do (None: no limit)."""

    words: tuple[str, ...]
    prose: tuple[str, ...]
    functions: tuple[Function, ...]
    more_functions: tuple[Function, ...] = ()
    split: str | None = EVAL

    def __post_init__(self) -> None:
        if self.split not in (EVAL, TRAIN, None):
            raise unknown("split", self.split, (EVAL, TRAIN), "split")
        if len(self.words) < 2 or not self.prose:
            raise InputError("SCBench's stand-ins need words and sentences: name a corpus and a word count.")


def functions_of(documents: Iterable[str]) -> list[Function]:
    """Short functions and methods of Python files, names distinct, in the order of the files."""
    found: dict[str, Function] = {}
    for document in documents:
        try:
            tree = ast.parse(document)
        except SyntaxError:  # a file for another version of Python, or a template
            continue
        lines = document.split("\n")
        for node in _defined(tree):
            if node.name in found:
                continue
            code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            if code.count("\n") + 1 >= FEWEST_LINES and len(code) <= MOST_CHARACTERS:
                text = " ".join((ast.get_docstring(node) or "").split())
                found[node.name] = Function(node.name, code, text.split(". ")[0].rstrip("."))
    return list(found.values())


def _defined(parent: ast.AST) -> Iterator[ast.FunctionDef]:
    """Functions of a module and methods of its classes, none that stand in a function."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node)


@cache
def from_corpora(prose: str = "kjv", word_count: int = 200, split: str | None = EVAL) -> Sources:
    """Sources of the repository: held-out sentences of ``prose``, words that occur ``word_count`` times in all corpora,
    functions of the standard library, those of held-out files first."""
    held = functions_of(corpora.documents(CODE, "heldout"))
    names = {function.name for function in held}
    rest = [f for f in functions_of(corpora.documents(CODE, "train")) if f.name not in names]
    return Sources(
        words=tuple(corpora.common_words(word_count)),
        prose=tuple(corpora.sentences(prose, "heldout")),
        functions=tuple(documented(held)),
        more_functions=tuple(rest),
        split=split,
    )


def documented(functions: Sequence[Function]) -> list[Function]:
    """Those whose documentation says enough to ask for them: four words or more."""
    return [function for function in functions if function.description.count(" ") >= 3]
