"""Markdown tables: numbers with their intervals, the best of a column in bold, a note underneath."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A table as text: a title, a header, rows of cells, and what the reader must know."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str

    def __str__(self) -> str:
        align = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [line(self.header), line(align), *(line(r) for r in self.rows)]
        return f"## {self.title}\n\n" + "\n".join(lines) + f"\n\n{self.note}\n"


def line(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def number(value: float, digits: int = 1, sign: bool = False) -> str:
    """A number with fixed digits; a dash when there is none."""
    if value is None or value != value:
        return "–"
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text if float(text) or sign else f"{0:.{digits}f}"  # no -0.0


def interval(value: float, low: float, high: float, digits: int = 1, sign: bool = False, best: bool = False) -> str:
    """A number, bold when it is the best, and its 95 % interval."""
    text = number(value, digits, sign)
    text = f"**{text}**" if best else text
    return f"{text} [{number(low, digits, sign)}, {number(high, digits, sign)}]"
