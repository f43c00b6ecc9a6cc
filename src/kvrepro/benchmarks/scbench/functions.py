"""repoqa: whether the prediction is the function asked for, and more like it than like any other of the repository.

Pass@1 as published: similarity is sentence BLEU (smoothing method 4 of nltk) over words at white space; the best of all
functions asked for in the repository must be the right one, at 0.8 or more. What is compared is the first function in a
fenced block of the prediction, which tree-sitter finds; without a fence, the prediction as it is.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from kvrepro.errors import InputError

THRESHOLD = 0.8
INSTALL = "pip install 'kvrepro[scbench]'"

_FENCE = re.compile(r"^```(?:\w+)?\s*\n(.*?)(?=^```)```", re.DOTALL | re.MULTILINE)

#: Package, function of it that gives the grammar, and node types of a function with the field that must be there.
GRAMMARS = {
    "python": ("tree_sitter_python", "language", "function_definition"),
    "java": ("tree_sitter_java", "language", "method_declaration"),
    "typescript": ("tree_sitter_typescript", "language_typescript", "function_declaration"),
    "rust": ("tree_sitter_rust", "language", "function_item"),
    "cpp": ("tree_sitter_cpp", "language", "function_definition"),
    "go": ("tree_sitter_go", "language", "function_declaration"),
}


@cache
def _parser(lang: str) -> Any:
    package, function, _ = GRAMMARS[lang]
    try:
        tree_sitter = importlib.import_module("tree_sitter")
        grammar = getattr(importlib.import_module(package), function)()
        return tree_sitter.Parser(tree_sitter.Language(grammar))
    except ImportError as error:
        raise InputError(f"functions in {lang} are scored with the package {error.name}: {INSTALL}.") from error


def require(lang: str) -> None:
    """Raises InputError when a package that scores functions of ``lang`` is missing: before a grid, not in it."""
    _parser(lang)
    _bleu()


@cache
def _bleu() -> Any:
    try:
        return importlib.import_module("nltk.translate.bleu_score")
    except ImportError as error:
        raise InputError(f"functions are scored with the package nltk: {INSTALL}.") from error


def first_function(block: str, lang: str) -> str | None:
    """Text of the first function of a block of code, a method included; None when there is none."""
    source = block.encode()
    waiting = [_parser(lang).parse(source).root_node]
    while waiting:  # in the order of the text, what holds a function before what is in it
        node = waiting.pop()
        if node.type == GRAMMARS[lang][2] and _named(node, lang):
            return source[node.start_byte : node.end_byte].decode()
        waiting.extend(reversed(node.children))
    return None


def _named(node: Any, lang: str) -> bool:
    """In C++ only a plain identifier counts as the name, so methods outside their class do not."""
    if lang != "cpp":
        return node.child_by_field_name("name") is not None
    declarator = node.child_by_field_name("declarator")
    if declarator is None or declarator.type != "function_declarator":
        return False
    name = declarator.child_by_field_name("declarator")
    return name is not None and name.type == "identifier"


def answer_code(prediction: str, lang: str) -> str:
    """What of a prediction is compared: its first fenced function, else its first fenced block, else all of it."""
    text = prediction.strip()
    blocks = _FENCE.findall(text)
    functions = (first_function(block, lang) for block in blocks)
    return next((found for found in functions if found), blocks[0] if blocks else text)


def similarity(candidate: str, reference: str) -> float:
    """Sentence BLEU over words."""
    bleu = _bleu()
    words = [re.split(r"\s+", text.strip()) for text in (reference, candidate)]
    return float(bleu.sentence_bleu(words[:1], words[1], smoothing_function=bleu.SmoothingFunction().method4))


def function(prediction: str, name: str, needles: Sequence[Sequence[str]], lang: str) -> float:
    """1 when of ``needles`` (name and code) the one called ``name`` is most like the prediction, and enough so."""
    code = answer_code(prediction, lang)
    best, best_name = 0.0, None
    for other, text in needles:
        value = similarity(code, text)
        if value > best:
            best, best_name = value, other
    return float(best_name == name and best >= THRESHOLD)
