"""How a cache grows token by token under each primitive (WG-KV §2.2, Table 1, Figure 2b), measured over documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from kvrepro.analysis.patterns import ADMISSION, BOTH, EVICTION, FULL, GROWTH
from kvrepro.analysis.tidy import tidy
from kvrepro.cache.admitted import EVERYTHING, Policy, admitted_cache
from kvrepro.cache.bounded import Bounds, Limit
from kvrepro.cache.ragged import entries_held
from kvrepro.evaluate.decode import feed
from kvrepro.methods import admission, bounding
from kvrepro.models.gated_attention import keys_before_rope
from kvrepro.models.loading import LoadedModel

POINTS = 24  #: of a curve, about, beside those at evictions


@dataclass(frozen=True)
class Primitive:
    """What decides on the entries of a cache: an admission policy, a limit, or both; ``options`` say it in rows."""

    name: str
    policy: Policy
    limit: Limit | None
    options: Mapping


@dataclass(frozen=True)
class Grown:
    """Curves of a document by primitive: tokens fed, and entries held then, mean over layers and KV heads, both before
    and after every eviction, and how often it was evicted up to there: ``(tokens, entries, evictions)``."""

    curves: list[list[tuple[int, float, int]]]


def primitives(lm: LoadedModel, settings: Mapping[str, Any], gates: str) -> list[Primitive]:
    """The primitives of the config's key ``patterns``, with write gates from their file."""
    gate = {key: settings[key] for key in ("trade_off", "threshold")}
    admit = admission.build("write_gate", gate, "patterns", {"write_gates": gates})
    admit.prepare(lm)
    limit = dict(settings["bounding"])
    bound = bounding.build(limit.pop("method"), limit, "patterns.bounding").limit()
    policy = admit.policy(None, settings["tokens"])
    said = {"admission": {"method": "write_gate"} | gate, "bounding": settings["bounding"]}
    return [
        Primitive(FULL, EVERYTHING, None, {}),
        Primitive(ADMISSION, policy, None, {"admission": said["admission"]}),
        Primitive(EVICTION, EVERYTHING, bound, {"bounding": said["bounding"]}),
        Primitive(BOTH, policy, bound, said),
    ]


@torch.no_grad()
def grow(lm: LoadedModel, tokens: torch.Tensor, primitives: Sequence[Primitive]) -> Grown:
    """Feed a document ``[n]`` to the model, in a row for each primitive, of which one has a limit at least."""
    store: dict[int, torch.Tensor] = {}
    step, fed = -(-len(tokens) // POINTS), 0
    with keys_before_rope(lm, store):
        cache = admitted_cache(lm, [each.policy for each in primitives], store)
        layers = [cache.layers[i] for i in lm.geometry.attention_layers]
        bounds = Bounds(layers, [each.limit for each in primitives])
        curves: list[list[tuple[int, float, int]]] = [[(0, 0.0, 0)] for _ in primitives]

        def note() -> None:
            means = entries_held(layers).flatten(1).float().mean(1).tolist()
            for curve, mean, evictions in zip(curves, means, bounds.evictions, strict=True):
                if curve[-1] != (point := (fed, mean, evictions)):
                    curve.append(point)

        for piece in bounds.pieces(tokens.expand(len(primitives), -1).to(lm.device)):
            note()  # what an eviction after the last piece has left
            for part in piece[0].split(step):
                feed(lm, cache, part, len(primitives))
                fed += len(part)
                note()
        note()
    return Grown(curves)


def growth_rows(
    lm: LoadedModel,
    documents: Sequence[torch.Tensor],
    primitives: Sequence[Primitive],
    corpus: str,
    tier: str,
    seed: int = 0,
) -> pd.DataFrame:
    """Tidy rows of experiment ``cache_growth``: method the primitive, task the document.

    Per point of a curve ``entries``, item the tokens; of the whole document, item 0: ``attended``, the entries that a
    token attends to in a head, mean over tokens, ``evictions``, and ``first_eviction``, the tokens before it, all of
    them where there is none.
    """
    found = []
    for number, document in enumerate(tqdm(documents, desc="growth", unit="document")):
        for each, curve in zip(primitives, grow(lm, document, primitives).curves, strict=True):
            about = each.name, json.dumps(dict(each.options), sort_keys=True), f"{corpus} {number}"
            found += [(*about, tokens, "entries", entries) for tokens, entries, _ in curve]
            found += [(*about, 0, metric, value) for metric, value in _summary(curve, len(document))]
    return tidy(found, GROWTH, lm.name, tier, seed, paper="wg_kv")


def _summary(curve: list[tuple[int, float, int]], n: int) -> Iterator[tuple[str, float]]:
    area = sum((y[0] - x[0]) * (x[1] + y[1]) / 2 for x, y in pairwise(curve))
    yield "attended", area / n
    yield "evictions", float(curve[-1][2])
    yield "first_eviction", float(next((tokens for tokens, _, evictions in curve if evictions), n))
