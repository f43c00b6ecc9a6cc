"""Observation 1: how long GDN heads remember, whether their order is the document's or the model's, and what their
writes vary with (GateSight §3.1, Appendix C)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import pandas as pd
import torch

from kvrepro.analysis.memory import half_life, slow_heads, static_half_lives
from kvrepro.analysis.ranking import spearman
from kvrepro.analysis.tidy import every, tidy
from kvrepro.labels.corpus import LabelledCorpus, Labels
from kvrepro.models.capture import MAGNITUDE, WRITE_GATE
from kvrepro.models.geometry import Geometry
from kvrepro.models.loading import LoadedModel

#: The smallest write gate that label files can hold (half precision); a gate of zero counts as this.
LEAST = 2.0**-24


def effective_write(doc: Labels) -> torch.Tensor:
    """β‖v‖ of every GDN head at every token, float64: ``[gdn_layers, n, gdn_heads]``."""
    return doc.signals[..., WRITE_GATE].double() * doc.signals[..., MAGNITUDE].double()


def variance_shares(write: torch.Tensor) -> torch.Tensor:
    """Shares of the variance of log β‖v‖ over (token, head): of the head, of the token, and the remainder (Appendix C).

    write ``[gdn_layers, n, gdn_heads]`` -> ``[gdn_layers, 3]``, which sum to one. A layer that does not vary is NaN.
    """
    x = write.clamp(min=LEAST).log()
    x = x - x.mean((1, 2), keepdim=True)
    head, token = x.mean(1, keepdim=True), x.mean(2, keepdim=True)
    parts = [part.expand_as(x).square().mean((1, 2)) for part in (head, token, x - head - token)]
    return torch.stack(parts, -1) / x.square().mean((1, 2))[:, None]


def jaccard(a: torch.Tensor, b: torch.Tensor) -> float:
    """Size of the intersection over size of the union of two sets given as masks; NaN when both are empty."""
    union = (a | b).sum().item()
    return (a & b).sum().item() / union if union else float("nan")


def dynamics_rows(
    labelled: Sequence[LabelledCorpus], step: int, thresholds: Sequence[float], tier: str, seed: int = 0
) -> pd.DataFrame:
    """Tidy rows of Observation 1 over every ``step``-th document.

    * ``half_lives``: method ``measured``, one row per document and head (options layer and head); method ``median``
      (task ``all``), the head's median over all documents, which decides the slow set.
    * ``order_stability``: Spearman correlation over all heads between the documents of random disjoint pairs (item),
      by half-life (method ``half_life``) and by mean effective write (``write``).
    * ``slow_set``: metric ``jaccard`` of the document's slow set with that of all documents, options the threshold.
    * ``write_variance``: method ``head``, ``token`` or ``remainder``, metric ``share``, per document and GDN layer.
    * ``slow_heads_write``: per document and GDN layer, the Spearman correlation over its heads between half-life and
      mean effective write.
    """
    meta = labelled[0].meta
    geometry = Geometry.from_dict(meta["geometry"])
    heads = _head_options(geometry)
    layers = [json.dumps({"layer": layer}) for layer in geometry.gdn_layers]
    median = slow_heads(labelled, 0).median
    found: dict[str, list] = {e: [] for e in ("half_lives", "slow_set", "write_variance", "slow_heads_write")}
    lives, writes = [], []
    for corpus, i, doc in every(labelled, step):
        life, write = half_life(doc), effective_write(doc)
        mean = write.mean(1)
        lives.append(life.flatten())
        writes.append(mean.flatten())
        found["half_lives"] += [
            ("measured", o, corpus, i, "half_life", x) for o, x in zip(heads, life.flatten().tolist(), strict=True)
        ]
        found["slow_set"] += [
            ("slow", json.dumps({"threshold": t}), corpus, i, "jaccard", jaccard(life >= t, median >= t))
            for t in thresholds
        ]
        found["write_variance"] += [
            (effect, o, corpus, i, "share", x)
            for o, shares in zip(layers, variance_shares(write).tolist(), strict=True)
            for effect, x in zip(("head", "token", "remainder"), shares, strict=True)
        ]
        found["slow_heads_write"] += [
            ("write", o, corpus, i, "spearman", x) for o, x in zip(layers, spearman(life, mean).tolist(), strict=True)
        ]
    found["half_lives"] += [
        ("median", o, "all", 0, "half_life", x) for o, x in zip(heads, median.flatten().tolist(), strict=True)
    ]
    found["order_stability"] = [
        *_pairs("half_life", torch.stack(lives), seed),
        *_pairs("write", torch.stack(writes), seed),
    ]
    return pd.concat([tidy(rows, e, meta["model"], tier, seed) for e, rows in found.items()], ignore_index=True)


def static_rows(lm: LoadedModel, tier: str, seed: int = 0) -> pd.DataFrame:
    """Rows of experiment ``half_lives``, method ``static``: each head's half-life at zero input, from the weights."""
    values = static_half_lives(lm).flatten().tolist()
    found = [("static", o, "all", 0, "half_life", x) for o, x in zip(_head_options(lm.geometry), values, strict=True)]
    return tidy(found, "half_lives", lm.name, tier, seed)


def _head_options(geometry: Geometry) -> list[str]:
    """The options of every GDN head; ``layer`` counts over all layers of the model."""
    return [
        json.dumps({"layer": layer, "head": head})
        for layer in geometry.gdn_layers
        for head in range(geometry.gdn_heads)
    ]


def _pairs(method: str, values: torch.Tensor, seed: int) -> Iterator[tuple]:
    """Spearman correlation of each pair; ``values`` ``[documents, heads]``. No document is in two pairs, so that pairs
    may be resampled as independent units."""
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    half = len(order) // 2
    rho = spearman(values[order[:half]], values[order[half : 2 * half]])
    for i, x in enumerate(rho.tolist()):
        yield method, "{}", "pairs", i, "spearman", x if math.isfinite(x) else float("nan")
