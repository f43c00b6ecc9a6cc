"""Findings as tidy rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from kvrepro.errors import InputError
from kvrepro.labels.corpus import LabelledCorpus, Labels

#: What changes from row to row; an analysis gives tuples of these.
COLUMNS = ["method", "options", "task", "item", "metric", "value"]


def tidy(
    found: Iterable[tuple], experiment: str, model: str, tier: str, seed: int, paper: str = "gatesight"
) -> pd.DataFrame:
    """Rows of one experiment in the schema of :mod:`kvrepro.results`, from tuples of COLUMNS."""
    rows = pd.DataFrame(list(found), columns=COLUMNS)
    same = {"paper": paper, "experiment": experiment, "tier": tier, "model": model}
    return rows.assign(**same, budget=float("nan"), seed=seed)


def every(labelled: Sequence[LabelledCorpus], step: int) -> Iterator[tuple[str, int, Labels]]:
    """Every ``step``-th document of all corpora in turn, as (corpus, its number there, labels); GateSight Appendix C
    takes every tenth. InputError for a step below 1."""
    if step < 1:
        raise InputError(f"every: a step of {step} documents is none; give at least 1.")
    place = 0
    for corpus in labelled:
        for i in range(len(corpus)):
            if place % step == 0:
                yield corpus.name, i, corpus[i]
            place += 1
