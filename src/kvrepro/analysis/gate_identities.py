"""What WG-KV says of its gated attention and its cache by definition (§3.1, §3.2), checked on a model and its gates.

Attention is checked layer by layer on the queries, keys and values of a real forward, in float32: by the attention that
gates are trained with, against plain softmax attention and against exponentials multiplied by the mask of §3.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd
import torch
import torch.nn.functional as F
from tqdm import tqdm

from kvrepro.analysis.patterns import IDENTITIES
from kvrepro.analysis.tidy import tidy
from kvrepro.cache.admitted import Policy, admitted_cache
from kvrepro.cache.ragged import EMPTY
from kvrepro.evaluate.decode import feed
from kvrepro.models.capture import decoder
from kvrepro.models.gate import WriteGates
from kvrepro.models.gated_attention import distant_bias, gated, gated_attention_exact, keys_before_rope
from kvrepro.models.loading import LoadedModel

WINDOWS = 4  #: of a context that is checked, so that most queries look beyond theirs
STEPS = 8  #: tokens that are decoded one by one
HIDDEN = (0.0, 0.25, 0.5)  #: which tokens are hidden, as shares of those that have queries beyond the window


def mask(gates: torch.Tensor, window: int) -> torch.Tensor:
    """The mask of §3.2, ``[batch, kv_heads, n, n]``: one within the window, the key's gate beyond it, zero ahead."""
    place = torch.arange(gates.shape[-1], device=gates.device)
    age = place[:, None] - place
    return torch.where(age >= window, gates[:, :, None], 1.0).masked_fill(age < 0, 0.0)


def multiplied(query, key, value, weight: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention whose exponentials are multiplied by ``weight`` ``[batch, kv_heads, t, n]``; tensors as in
    :func:`kvrepro.models.gated_attention.gated_attention`."""
    group = query.shape[1] // key.shape[1]
    key, value, weight = (x.repeat_interleave(group, 1) for x in (key, value, weight))
    scores = query @ key.mT * scale
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp() * weight
    return exponentials @ value / exponentials.sum(-1, keepdim=True)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest output."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


@dataclass
class Comparison:
    """Attends as the model does, and notes by layer how far its gated form is from what it should be: ``open_gate``,
    ``closed_gate`` and ``log_space``. To be used with :func:`kvrepro.models.gated_attention.gated`."""

    gates: WriteGates
    errors: dict[int, dict[str, float]] = field(default_factory=dict)

    def attend(self, layer: int, keys_pre_rope, query, key, value, scale: float) -> torch.Tensor:
        """Attention of a layer without gates, ``[batch, query_heads, n, head_dim]``."""
        window, found = self.gates.window, self.gates.of_layer(layer)(keys_pre_rope, key)
        wide = query.float(), key.float(), value.float()
        full = F.scaled_dot_product_attention(*wide, is_causal=True, scale=scale, enable_gqa=True)

        def weighed(gates: torch.Tensor) -> torch.Tensor:
            return gated_attention_exact(*wide, distant_bias(gates), window, scale)

        self.errors[layer] = {
            "open_gate": difference(weighed(torch.ones_like(found)), full),
            "closed_gate": max(self._hidden(wide, found, scale, token, weighed) for token in self._tokens(key)),
            "log_space": difference(weighed(found), multiplied(*wide, mask(found, window), scale)),
        }
        return full.to(query.dtype)

    def _tokens(self, key: torch.Tensor) -> list[int]:
        return [int(share * (key.shape[2] - self.gates.window)) for share in HIDDEN]

    def _hidden(self, wide, gates: torch.Tensor, scale: float, token: int, weighed) -> float:
        """How far queries beyond the window of a token with a closed gate are from those of a context without it."""
        query, key, value = wide
        closed = gates.index_fill(2, torch.tensor([token], device=gates.device), 0.0)
        beyond = slice(token + self.gates.window, None)
        others = torch.arange(gates.shape[-1], device=gates.device) != token
        weight = mask(gates, self.gates.window)[:, :, beyond][..., others]
        without = multiplied(query[:, :, beyond], key[:, :, others], value[:, :, others], weight, scale)
        return difference(weighed(closed)[:, :, beyond], without)


def misplaced(positions: torch.Tensor, gates: torch.Tensor, threshold: float, window: int) -> int:
    """Entries of a layer held that should not be or held twice, plus those missing: ``positions`` ``[kv_heads, slots]``
    of what is held, ``gates`` ``[kv_heads, n]`` of all tokens that passed."""
    n = gates.shape[-1]
    held = torch.zeros(len(gates), n + 1, dtype=torch.long, device=gates.device)
    held.scatter_add_(1, torch.where(positions == EMPTY, n, positions), torch.ones_like(positions))
    local = torch.arange(n, device=gates.device) >= n - window
    return int((held[:, :n] - (local | (gates >= threshold)).long()).abs().sum())


@torch.no_grad()
def misplaced_entries(
    lm: LoadedModel, gates: WriteGates, tokens: torch.Tensor, threshold: float
) -> dict[int, dict[str, float]]:
    """:func:`misplaced` by layer of an admitted cache, after the prefill of all tokens ``[n]`` but the last STEPS, and
    after those were decoded one by one."""
    seen: dict[int, list[torch.Tensor]] = {layer: [] for layer in lm.geometry.attention_layers}

    def gate(layer, keys_pre_rope, keys, positions):
        found = gates.of_layer(layer)(keys_pre_rope, keys)
        seen[layer].append(found[0])
        return found

    found: dict[int, dict[str, float]] = {layer: {} for layer in seen}

    def count(name: str) -> None:
        for layer, passed in seen.items():
            held = cache.layers[layer].positions[0]
            found[layer][name] = float(misplaced(held, torch.cat(passed, -1), threshold, gates.window))

    store: dict[int, torch.Tensor] = {}
    with keys_before_rope(lm, store):
        cache = admitted_cache(lm, [Policy(gates.window, gate, threshold)], store)
        feed(lm, cache, tokens[:-STEPS])
        count("misplaced_after_prefill")
        for token in tokens[-STEPS:].split(1):
            feed(lm, cache, token)
        count("misplaced_after_decoding")
    return found


@torch.no_grad()
def attention_errors(lm: LoadedModel, gates: WriteGates, tokens: torch.Tensor) -> dict[int, dict[str, float]]:
    """The errors of :class:`Comparison` by layer, over a context ``[n]``."""
    comparison = Comparison(gates)
    with gated(lm, comparison):
        decoder(lm.model)(input_ids=tokens[None].to(lm.device), use_cache=False)
    return comparison.errors


def identity_rows(
    lm: LoadedModel,
    gates: WriteGates,
    documents: Sequence[torch.Tensor],
    threshold: float,
    corpus: str,
    tier: str,
    seed: int = 0,
) -> pd.DataFrame:
    """Tidy rows of experiment ``gate_identities`` over the first WINDOWS windows of documents, tokens ``[n]`` each: per
    document and layer (options) the errors of :class:`Comparison`, and what :func:`misplaced_entries` counts."""

    def found() -> Iterator[tuple]:
        for item, document in enumerate(tqdm(documents, desc="identities", unit="document")):
            tokens = document[: WINDOWS * gates.window]
            errors, entries = attention_errors(lm, gates, tokens), misplaced_entries(lm, gates, tokens, threshold)
            same = {"lambda": gates.trade_off, "threshold": threshold, "window": gates.window, "tokens": len(tokens)}
            for layer in lm.geometry.attention_layers:
                options = json.dumps({"layer": layer} | same)
                for metric, value in (errors[layer] | entries[layer]).items():
                    yield "write_gate", options, corpus, item, metric, value

    return tidy(found(), IDENTITIES, lm.name, tier, seed, paper="wg_kv")
