"""Whether signals and estimators carry over to longer documents and to task text (GateSight Appendix C, Table 6)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
import torch

from kvrepro.analysis.memory import SlowHeads
from kvrepro.analysis.names import LENGTH_PREDICTORS
from kvrepro.analysis.predictors import untrained
from kvrepro.analysis.ranking import ranking
from kvrepro.analysis.tidy import every, tidy
from kvrepro.errors import InputError
from kvrepro.estimators.features import window_layers
from kvrepro.estimators.mlp import Estimators
from kvrepro.labels.corpus import LabelledCorpus, document_seed

METRICS = ("spearman", "overlap@10")


def length_rows(
    name: str,
    labelled: Sequence[LabelledCorpus],
    step: int,
    estimators: Estimators,
    slow: SlowHeads,
    tier: str,
    seed: int = 0,
) -> pd.DataFrame:
    """Tidy rows of the set ``name``, experiment ``lengths``: every ``step``-th document, each attention layer that
    has a GDN layer before it, the predictors of Table 6, mean over KV heads.

    ``slow`` is the slow set of the corpora that the estimators were trained on; it is not estimated again. options
    name set and layer, task the corpus or benchmark task. Raises InputError for labels of another model.
    """
    geometry, window = estimators.geometry, estimators.recipe["window"]
    found = []
    for corpus in labelled:
        if corpus.meta["fingerprint"] != estimators.fingerprint:
            raise InputError(f"set {name}: labels of {corpus.meta['model']} do not fit the estimators; label it again.")
    for corpus, i, doc in every(labelled, step):
        predicted = estimators.score(doc.signals)
        generator = torch.Generator().manual_seed(document_seed(seed, f"random {name} {corpus}", i))
        for number, layer in enumerate(geometry.attention_layers):
            if not window_layers(geometry, layer, window):
                continue
            utility = doc.utility[number]
            scores = untrained(doc, geometry, layer, slow, window) | {"mlp": predicted[number]}
            scores["random"] = torch.rand(utility.shape, generator=generator)
            values = ranking(torch.stack([scores[p].expand_as(utility) for p in LENGTH_PREDICTORS]), utility)
            options = json.dumps({"layer": layer, "set": name})
            found += [
                (predictor, options, corpus, i, metric, value)
                for metric in METRICS
                for predictor, value in zip(LENGTH_PREDICTORS, values[metric].mean(1).tolist(), strict=True)
            ]
    return tidy(found, "lengths", estimators.model, tier, seed)
