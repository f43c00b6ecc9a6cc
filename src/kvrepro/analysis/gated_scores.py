"""Whether the output gate ranks the entries of a head: scores by received attention with and without it (GateSight
Appendix D)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from kvrepro.analysis.ranking import spearman
from kvrepro.analysis.tidy import tidy
from kvrepro.errors import InputError
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill, decoder_layers, output_gates, prefill
from kvrepro.models.loading import LoadedModel

ELEMENTS = 2**24  #: numbers of gated values that are held at a time


@torch.no_grad()
def received(lm: LoadedModel, tokens: torch.Tensor, rows: int) -> dict[str, list[torch.Tensor]]:
    """What the last ``rows`` tokens of a context ``[n]`` take from each entry, without (``open``) and with (``gated``)
    the output gate on its value: per attention layer ``[kv_heads, n]`` float32.

    The score of entry i is the maximum over these tokens t and the query heads j of the GQA group of a_j(t, i) ‖W_j
    v_i‖, with W_j the head's slice of the output projection; gated, v_i becomes gate_j(t) ⊙ v_i. Raises InputError for
    a model without output gates.
    """
    g = lm.geometry
    if not g.output_gate:
        raise InputError(f"{lm.name} has no attention output gate; use a hybrid.")
    with output_gates(lm) as gates:
        parent = prefill(lm, tokens, query_window=rows)
    rows = min(rows, parent.n)
    found: dict[str, list[torch.Tensor]] = {"open": [], "gated": []}
    for number, layer in enumerate(g.attention_layers):
        module = decoder_layers(lm.model)[layer].self_attn
        slices = module.o_proj.weight.float().unflatten(1, (g.query_heads, g.head_dim))
        unread = parent.unread(number, rows)
        scores = {name: torch.zeros(g.kv_heads, parent.n, device=unread.device) for name in found}
        for j in range(g.query_heads):
            h = j // g.group
            keys, values = parent.keys[number][h].float(), parent.values[number][h].float()
            logits = parent.queries[number][j].float() @ keys.T * module.scaling
            paid = logits.masked_fill(unread, float("-inf")).softmax(-1)  # [rows, n]
            root = torch.linalg.qr(slices[:, j]).R.T  # ‖W v‖ = ‖v root‖, in head_dim numbers
            sizes = {
                "open": (values @ root).norm(dim=-1),
                "gated": _gated(values, gates[layer][0, -rows:, j], root),
            }
            for name, size in sizes.items():
                scores[name][h] = torch.maximum(scores[name][h], (paid * size).amax(0))
        for name, score in scores.items():
            found[name].append(score)
    return found


def _gated(values: torch.Tensor, gates: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """‖(gate ⊙ v) root‖ of every token's gate ``[rows, d]`` and every value ``[n, d]``: ``[rows, n]``."""
    step = max(1, ELEMENTS // values.numel())
    return torch.cat([((values * part[:, None]) @ root).norm(dim=-1) for part in gates.split(step)])


@dataclass
class ReceivedAttention(Eviction):
    """Evict by the scores of :func:`received`, to ask end to end whether the gate belongs into a score. It is an arm of
    this analysis and no published method."""

    rows: int
    gated: bool

    def __post_init__(self):
        self.name = "received_attention"  # for rows; a name of the class would list it as a method of configs

    def prepare(self, lm: LoadedModel) -> None:
        """Keep the model, which is run again to score a context."""
        self._lm = lm

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Received attention, per attention layer ``[kv_heads, n]``."""
        return received(self._lm, prefill.tokens, self.rows)["gated" if self.gated else "open"]


def ranking_rows(
    lm: LoadedModel, documents: Mapping[str, Sequence[torch.Tensor]], rows: int, tier: str, seed: int = 0
) -> pd.DataFrame:
    """Tidy rows, experiment ``gated_ranking``: per document and attention layer (options) the Spearman correlation over
    the entries between the gated and the open scores of :func:`received`, mean over KV heads."""
    found = []
    for corpus, texts in documents.items():
        for i, tokens in enumerate(texts):
            scores = received(lm, tokens, rows)
            for layer, gated, plain in zip(lm.geometry.attention_layers, scores["gated"], scores["open"], strict=True):
                rho = spearman(gated.cpu(), plain.cpu()).mean().item()
                found.append(("gated", json.dumps({"layer": layer}), corpus, i, "spearman", rho))
    return tidy(found, "gated_ranking", lm.name, tier, seed)
