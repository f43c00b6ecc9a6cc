"""Every figure and table by name: the function that makes it and the results it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Product:
    """A figure (``make`` gives a Figure) or a table (a frame and Markdown) of one or more papers.

    ``reads`` names the rows of one model that ``make`` is given: accuracy, on all benchmarks of the experiment, or the
    name of a benchmark, accuracy on that one where the experiment has it; predictors; observations (with the
    predictors); gates (with other budgets); write_gates; local_cache (these, and gates without one); patterns;
    primitives (these, and accuracy on RULER where the experiment has it); or goals (write_gates, and accuracy on RULER
    and reasoning where the experiment has them).
    ``function`` names it within kvrepro; it is imported when it is called, since the workflow reads this list in every
    job. ``needs`` names an artefact or a family of methods, or an analysis, without which there is nothing to show.
    ``file`` is the name of its files where that is not the product's own. ``published`` are files of the paper's
    authors that a figure also shows, where the user has them (:mod:`kvrepro.analysis.published`); ``measured`` are
    committed measurements (CSV) that a table also reads.
    """

    papers: tuple[str, ...]
    reads: str
    function: str
    needs: str | None = None
    file: str | None = None
    published: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()

    @property
    def make(self) -> Callable[..., Any]:
        """The function that makes the product of its rows."""
        module, name = self.function.rsplit(".", 1)
        return getattr(import_module(f"kvrepro.{module}"), name)


GATESIGHT = ("gatesight",)
WG_KV = ("wg_kv",)
BOTH = ("gatesight", "wg_kv")

# Published files by what they hold: curves, what gates cost with a local cache and without, and heat maps.
HELMET = ("data/benchmark.csv", "data_qwen3_4b_2507/benchmark.csv")
QUEST = ("data/integration_0.08.csv",)
AIME25 = ("data/snapkv_no.csv", "data/snapkv_4096.csv")
LOSSES = ("data/threshold.csv",)
LOCAL_LOSSES = (*LOSSES, "data/threshold_local1.csv")
HEADS = ("data/gate_1.csv", "data/gate_2.csv")

GATE_TRAINING = ("results/reference/h200/benchmarks/gate_training.csv",)


FIGURES = {
    "figure_1": Product(GATESIGHT, "observations", "figures.memory.figure_1"),
    "figure_2": Product(GATESIGHT, "observations", "figures.observations.figure_2"),
    "figure_4a": Product(GATESIGHT, "scbench", "figures.accuracy.figure_4a"),
    "figure_4b": Product(GATESIGHT, "ruler", "figures.accuracy.figure_4b"),
    "figure_5": Product(GATESIGHT, "predictors", "figures.predictors.figure_5"),
    "figure_6": Product(GATESIGHT, "observations", "figures.observations.figure_6"),
    "figure_7": Product(GATESIGHT, "observations", "figures.observations.figure_7"),
    "figure_8": Product(GATESIGHT, "predictors", "figures.predictors.figure_8"),
    "figure_9": Product(GATESIGHT, "scbench", "figures.accuracy.figure_9"),
    "figure_11": Product(GATESIGHT, "ruler", "figures.accuracy.figure_11"),
    "figure_13": Product(GATESIGHT, "gates", "figures.budgets.figure_13"),
    "wg_kv_figure_2b": Product(WG_KV, "patterns", "figures.patterns.figure_2b", "patterns", "figure_2b"),
    "wg_kv_figure_3": Product(WG_KV, "patterns", "figures.patterns.figure_3", "patterns", "figure_3"),
    "wg_kv_figure_7": Product(WG_KV, "helmet", "figures.admission.figure_7", "write_gates", "figure_7", HELMET),
    "wg_kv_figure_7_ruler": Product(WG_KV, "ruler", "figures.admission.figure_7", "write_gates", "figure_7_ruler"),
    "wg_kv_figure_9": Product(WG_KV, "helmet", "figures.selection.figure_9", "selection", "figure_9", QUEST),
    "wg_kv_figure_9_ruler": Product(WG_KV, "ruler", "figures.selection.figure_9", "selection", "figure_9_ruler"),
    "wg_kv_figure_10": Product(WG_KV, "reasoning", "figures.bounded.figure_10", "bounding", "figure_10", AIME25),
    "wg_kv_figure_11": Product(WG_KV, "write_gates", "figures.admission.figure_11", "write_gates", "figure_11", LOSSES),
    "wg_kv_figure_12": Product(
        WG_KV, "local_cache", "figures.admission.figure_12", "write_gates", "figure_12", LOCAL_LOSSES
    ),
    "wg_kv_figure_13": Product(WG_KV, "patterns", "figures.patterns.figure_13", "patterns", "figure_13", HEADS),
    "wg_kv_figure_16": Product(WG_KV, "reasoning", "figures.bounded.figure_16", "bounding", "figure_16", AIME25),
}

TABLES = {
    "table_1": Product(GATESIGHT, "predictors", "tables.predictors.table_1"),
    "wg_kv_table_1": Product(WG_KV, "primitives", "tables.primitives.table_1", "patterns", "table_1"),
    "wg_kv_goals": Product(WG_KV, "goals", "tables.wg_kv_goals.goals", "write_gates", "goals", measured=GATE_TRAINING),
    "table_3": Product(GATESIGHT, "accuracy", "tables.budgets.table_3"),
    "table_4": Product(GATESIGHT, "gates", "tables.budgets.table_4"),
    "table_5": Product(GATESIGHT, "predictors", "tables.predictors.table_5"),
    "table_6": Product(GATESIGHT, "observations", "tables.observations.table_6"),
    "table_7": Product(GATESIGHT, "observations", "tables.observations.table_7"),
    "table_d": Product(GATESIGHT, "gates", "tables.budgets.appendix_d"),
    "ruler": Product(BOTH, "ruler", "tables.accuracy.mean_accuracy"),
    "ruler_tasks": Product(BOTH, "ruler", "tables.accuracy.task_accuracy"),
    "helmet_tasks": Product(WG_KV, "helmet", "tables.accuracy.task_accuracy"),
    "longproc_tasks": Product(WG_KV, "longproc", "tables.accuracy.task_accuracy"),
    "scbench": Product(GATESIGHT, "scbench", "tables.accuracy.mean_accuracy"),
    "scbench_tasks": Product(GATESIGHT, "scbench", "tables.accuracy.task_accuracy"),
    "scbench_scorers": Product(GATESIGHT, "scbench", "tables.scbench.sensitivity"),
    "scbench_scorer_tasks": Product(GATESIGHT, "scbench", "tables.scbench.scorer_tasks"),
}

#: Figures of the latency profile, from its rows; they belong to no model. ``needs`` is the part of it that they show.
PROFILE_FIGURES = {
    name: Product(("wg_kv",), "profile", f"figures.{module}.{name}", needs=part)
    for name, module, part in (
        ("figure_1", "latency", "end_to_end"),
        ("figure_4", "latency", "kernels"),
        ("figure_8", "latency", "end_to_end"),
        ("figure_15", "latency", "end_to_end"),
        ("sweeps", "latency", "sweeps"),
        ("roofline", "roofline", "kernels"),
    )
}

#: Tables of the scoring cost, from the benchmark's rows; they belong to no model of a tier.
SCORING_TABLES = {name: Product(GATESIGHT, "scoring", f"tables.scoring.{name}") for name in ("table_2", "table_8")}
