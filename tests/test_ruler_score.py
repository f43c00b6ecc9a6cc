"""RULER's two metrics, worked out by hand."""

from __future__ import annotations

import pytest

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.ruler.score import clean
from kvrepro.errors import InputError

# task, prediction, references, score worked out by hand
CASES = [
    ("niah_single_1", " 1234567.", ["1234567"], 1.0),
    ("niah_single_1", " 123456", ["1234567"], 0.0),
    ("niah_single_3", "It is 7C2D-aa", ["7c2d-AA"], 1.0),  # case does not count
    ("niah_multivalue", "11, 22, and 33", ["11", "22", "33", "44"], 0.75),
    ("niah_multiquery", "", ["1", "2", "3", "4"], 0.0),
    ("vt", "ABCDE FGHIJ", ["ABCDE", "FGHIJ", "KLMNO", "PQRST", "UVWXY"], 0.4),
    ("cwe", " 1. sun 2. moon\n\n3. SUNDAY", ["sunday", "moon", "star", "tree"], 0.5),
    ("fwe", "abcdef ghijkl", ["abcdef", "ghijkl", "zzzzzz"], 2 / 3),
    ("niah_single_1", "123\x00456", ["123456"], 0.0),  # the control character becomes a newline, not nothing
    ("cwe", "a\tb", ["a\nb"], 1.0),
    ("qa_1", "the year was 1066", ["1066", "in 1066", "AD 1066"], 1.0),
    ("qa_1", "I do not know", ["1066", "in 1066"], 0.0),
    ("qa_2", "Helton, in Barshire", ["barshire"], 1.0),
]


@pytest.mark.parametrize(("task", "prediction", "references", "expected"), CASES)
def test_scores_by_hand(task, prediction, references, expected):
    assert ruler.score(task, prediction, references) == pytest.approx(expected)


def test_cleaning():
    assert clean(" \t a\x1fb\rc \x00") == "a\nb\nc"
    assert clean("\x7f\x80") == "\x7f\x80"  # only 0x00 to 0x1f are replaced


def test_no_references_is_an_error():
    with pytest.raises(InputError, match="cannot be scored"):
        ruler.score("qa_1", "x", [])
    with pytest.raises(InputError, match="unknown"):
        ruler.score("qa_3", "x", ["x"])
