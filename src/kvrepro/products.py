"""Every figure and table by name: the function that makes it and the results it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvrepro.figures import accuracy, budgets, memory, observations, predictors
from kvrepro.tables import accuracy as accuracy_tables
from kvrepro.tables import budgets as budget_tables
from kvrepro.tables import observations as observation_tables
from kvrepro.tables import predictors as predictor_tables


@dataclass(frozen=True)
class Product:
    """A figure (``make`` gives a Figure) or a table (a frame and Markdown) of one or more papers.

    ``reads`` names the rows of one model that ``make`` is given: accuracy, predictors, observations (with the
    predictors), or gates (with other budgets).
    """

    papers: tuple[str, ...]
    reads: str
    make: Callable[..., Any]


GATESIGHT = ("gatesight",)
BOTH = ("gatesight", "wg_kv")


FIGURES = {
    "figure_1": Product(GATESIGHT, "observations", memory.figure_1),
    "figure_2": Product(GATESIGHT, "observations", observations.figure_2),
    "figure_4b": Product(GATESIGHT, "accuracy", accuracy.figure_4b),
    "figure_5": Product(GATESIGHT, "predictors", predictors.figure_5),
    "figure_6": Product(GATESIGHT, "observations", observations.figure_6),
    "figure_7": Product(GATESIGHT, "observations", observations.figure_7),
    "figure_8": Product(GATESIGHT, "predictors", predictors.figure_8),
    "figure_11": Product(GATESIGHT, "accuracy", accuracy.figure_11),
    "figure_13": Product(GATESIGHT, "gates", budgets.figure_13),
}

TABLES = {
    "table_1": Product(GATESIGHT, "predictors", predictor_tables.table_1),
    "table_3": Product(GATESIGHT, "accuracy", budget_tables.table_3),
    "table_4": Product(GATESIGHT, "gates", budget_tables.table_4),
    "table_5": Product(GATESIGHT, "predictors", predictor_tables.table_5),
    "table_6": Product(GATESIGHT, "observations", observation_tables.table_6),
    "table_7": Product(GATESIGHT, "observations", observation_tables.table_7),
    "table_d": Product(GATESIGHT, "gates", budget_tables.appendix_d),
    "ruler": Product(BOTH, "accuracy", accuracy_tables.ruler),
    "ruler_tasks": Product(BOTH, "accuracy", accuracy_tables.ruler_tasks),
}
