"""Rows of a table that an answer gives, against those of the reference: precision, recall and F1, as published.

Faults of the published evaluation that stand here as they are: a row that is given twice counts twice for precision;
the names of the columns are not compared, only their number; and a last row with another number of cells than the
header is dropped as an end marker, also where it was meant as a row.
"""

from __future__ import annotations

import csv
import re

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.helmet import metrics

MISSING = "N/A"  #: every cell of a row that has another number of cells than the header


def score(example: Example, question: Question, text: str) -> dict[str, float]:
    """The F1 of an answer as "score", its "precision" and "recall", and "extraction_rate": whether a table with rows of
    the right number of cells was found at all."""
    wanted, given = table(question.references[0]), table(answer(text))
    if not wanted or not given or len(wanted[0]) != len(given[0]):
        return {"score": 0.0, "precision": 0.0, "recall": 0.0, "extraction_rate": 0.0}
    precision = sum(row in wanted for row in given) / len(given)
    recall = sum(row in given for row in wanted) / len(wanted)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"score": f1, "precision": precision, "recall": recall, "extraction_rate": 1.0}


def answer(text: str) -> str:
    """What stands between "```tsv" and the last "```"; all after "```tsv" where that is not closed; else everything."""
    if found := re.search(r"```tsv([\s\S]*)```", text):
        return found[1].strip()
    return text.split("```tsv")[1].strip() if "```tsv" in text else text.strip()


def table(text: str) -> list[tuple[str, ...]]:
    """The normalised rows of a table below its header, all of the header's length; empty where there is none."""
    try:
        header, *rows = csv.reader(text.strip().split("\n"), delimiter="\t")
    except (csv.Error, ValueError):
        return []
    if len(set(header)) < len(header):  # the published code cannot read such a table
        return []
    if rows and len(rows[-1]) != len(header):
        del rows[-1]
    return [
        tuple(normalised(cell) for cell in (row if len(row) == len(header) else [MISSING] * len(header)))
        for row in rows
    ]


def normalised(cell: str) -> str:
    """As HELMET normalises an answer, and without white space."""
    return metrics.normalised(cell).replace(" ", "")
