"""Where the signal sits: utility deciles along the slow heads' writes, single heads, and whole GDN layers (GateSight
§3.2 and §3.3, Figures 2c, 6 and 7)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from scipy.stats import rankdata

from kvrepro.analysis.dynamics import effective_write
from kvrepro.analysis.memory import SlowHeads
from kvrepro.analysis.predictors import untrained
from kvrepro.analysis.ranking import top, top_count
from kvrepro.analysis.tidy import every, tidy
from kvrepro.estimators.features import window_layers
from kvrepro.labels.corpus import LabelledCorpus, Labels
from kvrepro.models.geometry import Geometry

DECILES = 10
GROUPS = 20  #: into which documents are averaged where there is a row per GDN head; they are what is resampled


def decile_rates(signal: torch.Tensor, utility: torch.Tensor) -> dict[str, torch.Tensor]:
    """How often entries of each decile of ``signal`` ``[n]`` belong to the tenth with the highest (``top``) and with
    the lowest (``bottom``) ``utility`` ``[kv_heads, n]``: ``[10]`` each, lowest decile first, mean over KV heads.

    Sizes of deciles differ by at most one and the highest has ⌊n/10⌋ entries, so its ``top`` is overlap@10. Ties of
    the signal rank the older entry higher. Both tenths have max(4, ⌊n/10⌋) entries, or all of a shorter document.
    """
    n = utility.shape[-1]
    k = top_count(DECILES, n)
    parts = top(signal, n).flip(0).tensor_split(DECILES)
    found = {}
    for end, chosen in (("top", top(utility, n)[:, :k]), ("bottom", top(utility, n)[:, n - k :])):
        inside = torch.zeros_like(utility, dtype=torch.float64).scatter_(1, chosen, 1.0).mean(0)
        found[end] = torch.stack([inside[part].mean() for part in parts])
    return found


def decile_rows(
    labelled: Sequence[LabelledCorpus], geometry: Geometry, slow: SlowHeads, window: int, tier: str, seed: int = 0
) -> pd.DataFrame:
    """Tidy rows, experiment ``deciles``: :func:`decile_rates` of the slow heads' effective write per document, mean
    over the attention layers that have a GDN layer before them. options: the decile, 1 to 10; metric: top or bottom."""
    layers = [x for x in geometry.attention_layers if window_layers(geometry, x, window)]
    found = []
    for corpus, i, doc in every(labelled, 1):
        rates = [
            decile_rates(
                untrained(doc, geometry, layer, slow, window)["write_slow"],
                doc.utility[geometry.attention_layers.index(layer)],
            )
            for layer in layers
        ]
        for end in ("top", "bottom"):
            mean = torch.stack([r[end] for r in rates]).nanmean(0)  # a short document has empty deciles
            found += [
                ("write_slow", json.dumps({"decile": d}), corpus, i, end, x) for d, x in enumerate(mean.tolist(), 1)
            ]
    return tidy(found, "deciles", labelled[0].meta["model"], tier, seed)


def correlations(signals: torch.Tensor, utility: torch.Tensor) -> torch.Tensor:
    """Spearman correlation of every signal ``[signals, n]`` with the utility of every attention layer
    ``[attention_layers, kv_heads, n]``, mean over KV heads: ``[attention_layers, signals]`` float64."""
    a, b = _ranks(utility.flatten(0, 1)), _ranks(signals)
    return (a @ b.T).unflatten(0, utility.shape[:2]).mean(1)


def _ranks(x: torch.Tensor) -> torch.Tensor:
    """Ranks along the last dimension, centred and of norm one (zero where constant)."""
    ranks = torch.from_numpy(rankdata(x.numpy(), axis=-1)).double()  # some releases of scipy keep float32
    return torch.nn.functional.normalize(ranks - ranks.mean(-1, keepdim=True), dim=-1)


def cell_rows(
    labelled: Sequence[LabelledCorpus], geometry: Geometry, window: int, tier: str, seed: int = 0
) -> pd.DataFrame:
    """Tidy rows of how effective writes correlate with utility, metric ``spearman``, mean over KV heads.

    * ``cells``: of each single head of the window before an attention layer; options layer, gdn_layer, head.
    * ``layer_writes``: of each GDN layer before an attention layer, its heads averaged; options layer, gdn_layer and
      whether it is in the window.

    Documents are averaged in up to GROUPS groups (item), which keeps the rows few.
    """
    documents = sum(map(len, labelled))
    groups = min(GROUPS, documents)
    totals: dict[str, list] = {"cells": [0.0] * groups, "layer_writes": [0.0] * groups}
    for place, (_, _, doc) in enumerate(every(labelled, 1)):
        for name, signals in _writes(doc).items():
            totals[name][place % groups] = totals[name][place % groups] + correlations(signals, doc.utility)
    found: dict[str, list] = {name: [] for name in totals}
    for group in range(groups):
        size = len(range(group, documents, groups))
        for number, layer, cell in _places(geometry, window):
            for experiment, (options, column) in cell.items():
                value = totals[experiment][group][number, column].item() / size
                options = json.dumps({"layer": layer} | options)
                found[experiment].append(("write", options, "all", group, "spearman", value))
    model = labelled[0].meta["model"]
    return pd.concat([tidy(rows, name, model, tier, seed) for name, rows in found.items()], ignore_index=True)


def _writes(doc: Labels) -> dict[str, torch.Tensor]:
    """Effective writes of all heads ``[gdn_layers * gdn_heads, n]`` and of all layers ``[gdn_layers, n]``."""
    write = effective_write(doc)
    return {"cells": write.transpose(1, 2).flatten(0, 1), "layer_writes": write.mean(2)}


def _places(geometry: Geometry, window: int) -> Iterator[tuple[int, int, dict[str, tuple[dict, int]]]]:
    """Per attention layer (its number among them and in the model) what is correlated with it: the options of the row
    and the column of the signal, by experiment."""
    for number, layer in enumerate(geometry.attention_layers):
        near = window_layers(geometry, layer, window)
        for k, gdn in enumerate(geometry.gdn_layers):
            if gdn < layer:
                yield number, layer, {"layer_writes": ({"gdn_layer": gdn, "in_window": k in near}, k)}
            if k in near:
                for head in range(geometry.gdn_heads):
                    column = k * geometry.gdn_heads + head
                    yield number, layer, {"cells": ({"gdn_layer": gdn, "head": head}, column)}
