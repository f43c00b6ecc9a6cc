"""What queries ask: all rows of one model in one tier, and what they answer when the rows do not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from kvrepro.analysis import summary
from kvrepro.analysis.accuracy import Accuracy, Series, accuracy, unanswered
from kvrepro.analysis.bootstrap import DRAWS, FEW, Estimate
from kvrepro.benchmarks import helmet, ruler, scbench
from kvrepro.errors import InputError

#: The tasks of a benchmark; a claim that names none is about all of them.
TASKS = {"ruler": ruler.TASKS, "scbench": scbench.TASKS, "helmet": helmet.TASKS}
LENGTH_SLACK = 0.1  #: how far the longest context of the rows may be from the length that a claim is about


class NoRows(LookupError):
    """The rows at hand cannot answer a query."""


@dataclass
class Evidence:
    """All rows of one model in one tier, and the evidence of the tier's models by name, for what counts over models."""

    model: str
    rows: pd.DataFrame
    tier: Mapping[str, Evidence] = field(default_factory=dict, repr=False)
    _cache: dict = field(default_factory=dict, repr=False)

    def of(self, experiment: str) -> pd.DataFrame:
        """Rows of one experiment; NoRows when there are none."""
        key = "of", experiment
        if key not in self._cache:
            self._cache[key] = self.rows[self.rows["experiment"] == experiment]
        if self._cache[key].empty:
            raise NoRows(experiment)
        return self._cache[key]

    def beside(self, model: str) -> Evidence:
        """The evidence of a model of the same tier; NoRows when the tier has none of it."""
        if model not in self.tier:
            raise NoRows(f"rows of {model}")
        return self.tier[model]

    def accuracy(
        self,
        benchmark: str,
        series: Sequence[Series],
        tasks: str | Sequence[str] | None = None,
        length: int | None = None,
    ) -> Accuracy:
        """Accuracy of series over tasks of a benchmark, by default all, on the items valid in each of the series.

        NoRows when a task, a series or a valid item of a task is missing, the contexts are of another length, or
        ``tasks`` names one that :meth:`answered` refuses.
        """
        names = (tasks,) if isinstance(tasks, str) else TASKS.get(benchmark) if tasks is None else tuple(tasks)
        key = benchmark, tuple(series), names, length
        if key not in self._cache:
            rows = self.of(benchmark)
            rows = rows if names is None else rows[rows["task"].isin(names)]
            if names and (missing := set(names) - set(rows["task"].unique())):
                raise NoRows(f"tasks {', '.join(sorted(missing))}")
            if tasks is not None:
                self.answered(benchmark, names)
            if length and abs(rows["n_tokens"].max() - length) > LENGTH_SLACK * length:
                raise NoRows(f"{benchmark} of {length} tokens")
            try:
                self._cache[key] = accuracy(rows, names, series)
            except InputError as error:
                raise NoRows(str(error)) from error
        return self._cache[key]

    def answered(self, benchmark: str, tasks: Sequence[str]) -> None:
        """NoRows when the unpruned model hardly answers one of the tasks: methods are level there, whatever they keep,
        which says nothing about a claim that names the task or counts tasks."""
        key = "unanswered", benchmark
        if key not in self._cache:
            rows = self.of(benchmark)
            self._cache[key] = unanswered(rows) if benchmark in TASKS else ()
        if missing := set(tasks) & set(self._cache[key]):
            raise NoRows(f"answers of the unpruned model to {', '.join(sorted(missing))}")

    def read(self, reader: Callable[[pd.DataFrame], Any]) -> Any:
        """What a reader of rows finds in them, read once."""
        if reader not in self._cache:
            self._cache[reader] = reader(self.rows)
        return self._cache[reader]

    @cached_property
    def predictors(self) -> pd.DataFrame:
        """Metrics of the predictors per document and layer."""
        return summary.with_layer(self.of("predictors"))

    @property
    def corpora(self) -> list[str]:
        """Corpora on whose documents predictors were compared."""
        return sorted(self.of("predictors")["task"].unique())


def exact(value: float) -> Estimate:
    """A number that was counted over everything there is, and not estimated from a sample."""
    return Estimate(np.float64(value), np.full(DRAWS, np.float64(value)), FEW)
