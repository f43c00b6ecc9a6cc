"""What the width of the estimator's window buys (GateSight Appendix F, Table 7)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pandas as pd

from kvrepro.analysis.ranking import ranking
from kvrepro.analysis.shape import window_counts
from kvrepro.analysis.tidy import every, tidy
from kvrepro.errors import InputError
from kvrepro.estimators.folds import Folds
from kvrepro.labels.corpus import LabelledCorpus
from kvrepro.models.geometry import Geometry

METRICS = ("spearman", "overlap@5", "overlap@10", "coverage@10")


def window_rows(
    labelled: Sequence[LabelledCorpus], trained: Mapping[int, Folds], geometry: Geometry, hidden: int, tier: str
) -> pd.DataFrame:
    """Tidy rows, experiment ``windows``: the networks with each window (options), every document predicted by those
    trained without its corpus; mean over KV heads and attention layers.

    ``trained`` maps a window to its folds. Rows of metrics ``inputs`` (of the widest network) and ``parameters`` (of
    all) describe a window once. Raises InputError when a corpus has no fold.
    """
    found = []
    for window, folds in trained.items():
        options = json.dumps({"window": window})
        counts = window_counts(geometry, window, hidden)
        found += [("mlp", options, "all", 0, name, value) for name, value in counts.items()]
        for corpus, i, doc in every(labelled, 1):
            if corpus not in folds:
                raise InputError(f"window {window}: no networks were trained without corpus {corpus!r}; train again.")
            predicted = folds[corpus]["mlp"].predict(doc.signals)
            layers = [ranking(p[None], u) for p, u in zip(predicted, doc.utility, strict=True)]
            found += [
                ("mlp", options, corpus, i, metric, sum(x[metric].mean().item() for x in layers) / len(layers))
                for metric in METRICS
            ]
    return tidy(found, "windows", labelled[0].meta["model"], tier, seed=0)
