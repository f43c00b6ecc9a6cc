"""How unevenly tokens are attended to, and how long: WG-KV §2.3 and Figure 3."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from tqdm import tqdm

from kvrepro.analysis.patterns import TRACE, UTILITY
from kvrepro.analysis.tidy import tidy
from kvrepro.errors import InputError
from kvrepro.models.attention import observing
from kvrepro.models.capture import decoder
from kvrepro.models.loading import LoadedModel

ROWS = 256  #: queries whose attention weights are held at a time
POINTS = 256  #: of a trace, each a mean over consecutive queries


@dataclass(frozen=True)
class Received:
    """What the tokens of a context receive in the query heads of all attention layers, ``[layers * heads, tokens]``
    float32, of those tokens that at least ``window`` queries see from beyond the window.

    ``near``: mean attention of the ``window - 1`` next queries; ``far``: mean attention of the queries that are at
    least ``window`` tokens younger; ``total``: the sum of the latter.
    """

    near: torch.Tensor
    far: torch.Tensor
    total: torch.Tensor

    def most(self, share: float) -> torch.Tensor:
        """Which tokens are among the ``share`` of them, at least one, with the most distant attention in each head."""
        return _chosen(self.far, slice(-_count(self.far, share), None))

    def least(self, share: float) -> torch.Tensor:
        """The same for the least of it."""
        return _chosen(self.far, slice(_count(self.far, share)))


def _count(values: torch.Tensor, share: float) -> int:
    return max(1, int(share * values.shape[-1]))


def _chosen(values: torch.Tensor, ranks: slice) -> torch.Tensor:
    """Which entries of a row have these ranks, counted from the least."""
    order = values.argsort(dim=-1, stable=True)[:, ranks]
    return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, order, True)


def attention_rows(query: torch.Tensor, key: torch.Tensor, scale: float) -> Iterator[tuple[int, torch.Tensor]]:
    """Causal attention weights of a context, some queries at a time: the first one's number and ``[query_heads, t,
    n]`` float32. query ``[query_heads, n, head_dim]``, key ``[kv_heads, n, head_dim]``, both after RoPE."""
    heads, n, _ = query.shape
    key = key.float().repeat_interleave(heads // key.shape[0], 0)
    places = torch.arange(n, device=query.device)
    for first in range(0, n, ROWS):
        logits = query[:, first : first + ROWS].float() @ key.mT * scale
        later = places > places[first : first + ROWS, None]
        yield first, logits.masked_fill_(later, float("-inf")).softmax(-1)


@torch.no_grad()
def received(lm: LoadedModel, tokens: torch.Tensor, window: int) -> Received:
    """Attention over a context ``[n]`` in one forward. InputError when it is too short for the window."""
    n = len(tokens)
    if (counted := n - 2 * window + 1) < 10:
        raise InputError(
            f"a context of {n} tokens is too short to tell near from distant attention with a window of {window}; "
            "raise patterns.tokens."
        )
    sums: dict[int, torch.Tensor] = {}

    def on_attention(module, query, key, *_):
        found = torch.zeros(2, query.shape[1], n, device=query.device)
        places = torch.arange(n, device=query.device)
        for first, weights in attention_rows(query[0], key[0], module.scaling):
            age = places[first : first + ROWS, None] - places
            found[0] += weights.masked_fill((age < 1) | (age >= window), 0.0).sum(1)
            found[1] += weights.masked_fill(age < window, 0.0).sum(1)
        sums[module.layer_idx] = found[..., :counted].cpu()

    with observing(on_attention):
        decoder(lm.model)(input_ids=tokens[None].to(lm.device), use_cache=False)
    near, far = torch.cat([sums[layer] for layer in lm.geometry.attention_layers], 1)
    return Received(near / (window - 1), far / (n - window - torch.arange(counted)), far)


def crosswise(found: Received, share: float = 0.1, ignored: float = 0.5) -> torch.Tensor:
    """Pairs of tokens of which one is in the top ``share`` of head g and the bottom ``ignored`` of head h, and the
    other the other way round: ``[heads, heads]`` counts."""
    ways = found.most(share).float() @ found.least(ignored).float().T
    return ways * ways.T


def contrast(found: Received, among: int, share: float = 0.1, ignored: float = 0.5) -> tuple[list[int], list[int]]:
    """Two heads and two of the first ``among`` tokens that show it best: each head is chosen with the token that it
    attends to most of those that the other one ignores. InputError when there is no such pair."""
    far, least = found.far[:, :among], found.least(ignored)[:, :among]
    liked = torch.where(found.most(share)[:, :among], far, 0.0)
    best = torch.stack([(own * least).amax(-1) for own in liked])  # [head, the one that ignores]
    both = torch.minimum(best, best.T)
    if not both.max() > 0:
        raise InputError("no two heads attend to and ignore two tokens crosswise; give longer contexts in patterns.")
    heads = [int(i) for i in divmod(int(both.argmax()), len(both))]
    return heads, [int((liked[h] * least[other]).argmax()) for h, other in (heads, heads[::-1])]


@torch.no_grad()
def traces(lm: LoadedModel, tokens: torch.Tensor, heads: Sequence[int], chosen: Sequence[int]) -> torch.Tensor:
    """Attention of every query of a context to each of the ``chosen`` tokens, 0 before them: ``[heads, chosen, n]``;
    heads as numbered by :class:`Received`."""
    g, found = lm.geometry, torch.zeros(len(heads), len(chosen), len(tokens))
    places = [(g.attention_layers[head // g.query_heads], head % g.query_heads) for head in heads]

    def on_attention(module, query, key, *_):
        own = [number for number, (layer, _) in enumerate(places) if layer == module.layer_idx]
        for first, weights in attention_rows(query[0], key[0], module.scaling) if own else ():
            for number in own:
                columns = weights[places[number][1]][:, list(chosen)]
                found[number, :, first : first + ROWS] = columns.T.cpu()

    with observing(on_attention):
        decoder(lm.model)(input_ids=tokens[None].to(lm.device), use_cache=False)
    return found


def token_utility_rows(
    lm: LoadedModel, documents: Sequence[torch.Tensor], window: int, corpus: str, tier: str, seed: int = 0
) -> pd.DataFrame:
    """Tidy rows of documents, tokens ``[n]`` each.

    Experiment ``token_utility``, per document and query head: ``top_tenth_share``, the share of the distant attention
    that the tenth of the tokens with the most of it receives, and of the half with the least, ``far_of_ignored`` and
    ``near_of_ignored``, mean attention per query beyond and within the window; per document ``crosswise_pairs`` of the
    two heads with the most. Experiment ``token_trace``: attention of later queries (item: the first of some) of the
    first document to the tokens of :func:`contrast`.
    """
    g, found, trace = lm.geometry, [], []
    for item, document in enumerate(tqdm(documents, desc="attention", unit="document")):
        seen = received(lm, document, window)
        trace = trace or list(_trace(lm, document, seen, window, corpus))
        top = torch.where(_chosen(seen.total, slice(-_count(seen.total, 0.1), None)), seen.total, 0.0).sum(
            -1
        ) / seen.total.sum(-1)
        ignored = seen.least(0.5)
        far, near = ((x * ignored).sum(-1) / ignored.sum(-1) for x in (seen.far, seen.near))
        for number in range(len(top)):
            head = {"layer": g.attention_layers[number // g.query_heads], "head": number % g.query_heads}
            about = "attention", json.dumps(head | {"window": window}), corpus, item
            values = {"top_tenth_share": top, "far_of_ignored": far, "near_of_ignored": near}
            found += [(*about, metric, float(x[number])) for metric, x in values.items()]
        about = "attention", json.dumps({"window": window}), corpus, item
        found.append((*about, "crosswise_pairs", float(crosswise(seen).max())))
    rows = tidy(found, UTILITY, lm.name, tier, seed, paper="wg_kv")
    traced = tidy(trace, TRACE, lm.name, tier, seed, paper="wg_kv")
    return pd.concat([rows, traced], ignore_index=True)


def _trace(lm: LoadedModel, document: torch.Tensor, seen: Received, window: int, corpus: str) -> Iterator[tuple]:
    g, n = lm.geometry, len(document)
    heads, tokens = contrast(seen, n // 2)
    step = -(-n // POINTS)
    for head, of_head in zip(heads, traces(lm, document, heads, tokens), strict=True):
        for token, line in zip(tokens, of_head, strict=True):
            place = {"layer": g.attention_layers[head // g.query_heads], "head": head % g.query_heads}
            options = json.dumps(place | {"token": token, "window": window, "queries": step})
            for first in range(token + 1, n, step):
                yield "attention", options, corpus, first, "attention", float(line[first : first + step].mean())
