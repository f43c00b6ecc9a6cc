"""Which signals anticipate utility: every predictor of GateSight Table 5 on every document, and Figure 5's document.

Learned predictors are given as folds: each document is predicted by what was trained without its corpus.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
import torch

from kvrepro.analysis.memory import SlowHeads
from kvrepro.analysis.ranking import ranking, spearman, top, top_count
from kvrepro.analysis.tidy import tidy
from kvrepro.errors import InputError
from kvrepro.estimators.features import window_layers
from kvrepro.estimators.folds import Folds
from kvrepro.labels.corpus import LabelledCorpus, Labels, document_seed
from kvrepro.models.capture import LOG_DECAY, MAGNITUDE, WRITE_GATE
from kvrepro.models.geometry import Geometry

ORACLE_PERCENT = 10
#: Of 16 attention layers (the 3rd to the 63rd of 64 layers) Figure 5 shows the 14th.
EXAMPLE_DEPTH = 13 / 15


def untrained(doc: Labels, geometry: Geometry, layer: int, slow: SlowHeads, window: int) -> dict[str, torch.Tensor]:
    """Scores ``[n]`` of the untrained signals for attention layer ``layer`` (its number in the model), random and
    oracle excepted, from the ``window`` GDN layers before it. Without a GDN layer there is only age."""
    scores = {"age": -torch.arange(doc.n, dtype=torch.float32)}
    layers = window_layers(geometry, layer, window)
    if not layers:
        return scores
    beta, g, v = (doc.signals[layers][..., s] for s in (WRITE_GATE, LOG_DECAY, MAGNITUDE))  # [window, n, heads]
    write = beta * v
    mask = slow.within(layers)[0][:, None].expand_as(write)
    count = mask[:, 0].sum()
    return scores | {
        "v_preceding": v[-1].mean(-1),
        "beta": beta.mean((0, 2)),
        "forget": -g.mean((0, 2)),
        "retention": g.exp().mean((0, 2)),
        "v": v.mean((0, 2)),
        "write": write.mean((0, 2)),
        "v_slow": (v * mask).sum((0, 2)) / count,
        "write_slow": (write * mask).sum((0, 2)) / count,
    }


def _cells(doc: Labels, layers: int) -> torch.Tensor:
    """Effective write β‖v‖ of every head of the first ``layers`` GDN layers: ``[cells, n]``."""
    signals = doc.signals[:layers]
    return (signals[..., WRITE_GATE] * signals[..., MAGNITUDE]).transpose(1, 2).flatten(0, 1)


def oracle_cells(labelled: Sequence[LabelledCorpus], geometry: Geometry) -> dict[int, torch.Tensor]:
    """Per attention layer the GDN head, of all layers before it, whose β‖v‖ has the highest mean overlap@10 with each
    KV head's utility on these same documents: layer -> ``[kv_heads]`` index into the cells (layer x head).

    It is chosen with the true utility, so it is a ceiling for rules that read one head, not a competitor.
    """
    before = {x: sum(i < x for i in geometry.gdn_layers) for x in geometry.attention_layers}
    total = {x: 0.0 for x, count in before.items() if count}
    for corpus in labelled:
        for doc in corpus:
            k = top_count(ORACLE_PERCENT, doc.n)
            chosen = top(_cells(doc, len(geometry.gdn_layers)), k)  # [cells, k]
            for number, x in enumerate(geometry.attention_layers):
                if x in total:
                    true = torch.zeros_like(doc.utility[number]).scatter_(1, top(doc.utility[number], k), 1.0)
                    total[x] = total[x] + true[:, chosen[: before[x] * geometry.gdn_heads]].mean(-1)
    return {x: overlap.argmax(1) for x, overlap in total.items()}


def predictor_rows(
    labelled: Sequence[LabelledCorpus],
    folds: Folds,
    geometry: Geometry,
    slow: SlowHeads,
    window: int,
    tier: str,
    seed: int = 0,
) -> pd.DataFrame:
    """Tidy rows, experiment ``predictors``: one per predictor, attention layer, document and metric.

    ``window`` is the number of GDN layers that the folds were trained to read; untrained signals come from the same.

    Columns: method is a key of PREDICTORS or ``v`` (Figure 2a), task the corpus, item the document, metric one of
    METRICS (a fraction, mean over KV heads), options ``{"layer": l}``, with ``"slow_heads"`` and ``"stand_in"`` for
    predictors that read the slow set. Raises InputError when a corpus has no fold.
    """
    oracle = oracle_cells(labelled, geometry)
    found = []
    for corpus in labelled:
        if corpus.name not in folds:
            raise InputError(f"no predictors were trained without corpus {corpus.name!r}; train the folds again.")
        for i, doc in enumerate(corpus):
            learned = {name: heads.predict(doc.signals) for name, heads in folds[corpus.name].items()}
            generator = torch.Generator().manual_seed(document_seed(seed, f"random {corpus.name}", i))
            for number, layer in enumerate(geometry.attention_layers):
                utility = doc.utility[number]
                scores = {"random": torch.rand(utility.shape, generator=generator)}
                scores |= untrained(doc, geometry, layer, slow, window)
                if layer in oracle:
                    scores["oracle"] = _cells(doc, len(geometry.gdn_layers))[oracle[layer]]
                scores |= {name: predicted[number] for name, predicted in learned.items()}
                values = ranking(torch.stack([s.expand_as(utility) for s in scores.values()]), utility)
                options = _options(geometry, layer, slow, window)
                found += [
                    (name, options.get(name, options[""]), corpus.name, i, metric, value)
                    for metric, per_head in values.items()
                    for name, value in zip(scores, per_head.mean(1).tolist(), strict=True)
                ]
    return tidy(found, "predictors", labelled[0].meta["model"], tier, seed)


def _options(geometry: Geometry, layer: int, slow: SlowHeads, window: int) -> dict[str, str]:
    """The options column by predictor; under "" that of all others."""
    plain = {"layer": layer}
    layers = window_layers(geometry, layer, window)
    if not layers:
        return {"": json.dumps(plain)}
    mask, stand_in = slow.within(layers)
    read = json.dumps(plain | {"slow_heads": int(mask.sum()), "stand_in": stand_in, "threshold": slow.threshold})
    return {"": json.dumps(plain), "v_slow": read, "write_slow": read}


def example_layer(geometry: Geometry) -> int:
    """The attention layer of Figure 5 at this model's depth (layer 55 of the paper's model)."""
    layers = geometry.attention_layers
    return layers[round(EXAMPLE_DEPTH * (len(layers) - 1))]


def example_rows(
    labelled: Sequence[LabelledCorpus], geometry: Geometry, slow: SlowHeads, window: int, tier: str, seed: int = 0
) -> pd.DataFrame:
    """Tidy rows of Figure 5, experiment ``example_document``: both traces of the document whose Spearman correlation
    between slow-head β‖v‖ and the KV-head mean of U is the median (of an even number, the lower one).

    method is ``utility`` or ``write_slow``, metric ``trace``, item the position, task the corpus; values are divided by
    their maximum after the first token. options name layer, document, and the correlation. Rows of metric ``spearman``
    give that correlation of every document (item).
    """
    layer = example_layer(geometry)
    number = geometry.attention_layers.index(layer)
    if not window_layers(geometry, layer, window):
        raise InputError(f"attention layer {layer} has no GDN layer before it; Figure 5 needs one.")

    def traces(doc: Labels) -> dict[str, torch.Tensor]:
        return {
            "utility": doc.utility[number].mean(0),
            "write_slow": untrained(doc, geometry, layer, slow, window)["write_slow"],
        }

    correlated = []
    for c, corpus in enumerate(labelled):
        for i, doc in enumerate(corpus):
            pair = traces(doc)
            correlated.append((float(spearman(pair["write_slow"], pair["utility"])), c, i))
    rho, c, i = sorted(correlated)[(len(correlated) - 1) // 2]
    options = json.dumps({"layer": layer, "document": i, "spearman": rho})
    found = [
        (method, options, labelled[c].name, position, "trace", value)
        for method, trace in traces(labelled[c][i]).items()
        for position, value in enumerate((trace / trace[1:].max()).tolist())
    ]
    found += [
        ("write_slow", json.dumps({"layer": layer}), labelled[c].name, i, "spearman", rho) for rho, c, i in correlated
    ]
    return tidy(found, "example_document", labelled[0].meta["model"], tier, seed)
