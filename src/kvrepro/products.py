"""Every figure and table by name: the function that makes it and the results it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvrepro.figures import accuracy, predictors
from kvrepro.tables import accuracy as accuracy_tables
from kvrepro.tables import predictors as predictor_tables


@dataclass(frozen=True)
class Product:
    """A figure (``make`` gives a Figure) or a table (a frame and Markdown) of one or more papers.

    ``reads`` names the rows of one model that ``make`` is given: accuracy or predictors.
    """

    papers: tuple[str, ...]
    reads: str
    make: Callable[..., Any]


GATESIGHT = ("gatesight",)
BOTH = ("gatesight", "wg_kv")


FIGURES = {
    "figure_4b": Product(GATESIGHT, "accuracy", accuracy.figure_4b),
    "figure_5": Product(GATESIGHT, "predictors", predictors.figure_5),
    "figure_8": Product(GATESIGHT, "predictors", predictors.figure_8),
    "figure_11": Product(GATESIGHT, "accuracy", accuracy.figure_11),
}

TABLES = {
    "table_1": Product(GATESIGHT, "predictors", predictor_tables.table_1),
    "table_5": Product(GATESIGHT, "predictors", predictor_tables.table_5),
    "ruler": Product(BOTH, "accuracy", accuracy_tables.ruler),
    "ruler_tasks": Product(BOTH, "accuracy", accuracy_tables.ruler_tasks),
}
