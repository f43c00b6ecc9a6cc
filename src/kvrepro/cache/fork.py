"""Forking one prefill into physically compacted children that decode as a batch (GateSight §4.3, Appendix A)."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from kvrepro.cache.ragged import RaggedLayer, pack
from kvrepro.cache.recurrent import repeated
from kvrepro.cache.session import Session
from kvrepro.models.capture import Prefill
from kvrepro.models.loading import LoadedModel


def fork(lm: LoadedModel, parent: Prefill, kept: list[list[torch.Tensor]]) -> Session:
    """One child a row of ``kept``: per child and attention layer a bool mask ``[kv_heads, n]`` of the entries it keeps.

    Kept entries are copied to the front of the child's own tensors and the rest is gone; GDN states are copied as they
    were at the end of the context; positions continue at ``n``. The parent is not changed.
    """
    g, rows = parent.geometry, len(kept)
    cache = DynamicCache(config=lm.model.config)
    for number, layer in enumerate(g.attention_layers):
        mask = torch.stack([child[number] for child in kept]).to(lm.device)
        positions = torch.arange(parent.n, device=lm.device).expand(rows, g.kv_heads, -1)
        keys = parent.keys[number].expand(rows, -1, -1, -1)
        values = parent.values[number].expand(rows, -1, -1, -1)
        cache.layers[layer] = RaggedLayer(*pack(keys, values, positions, mask), seen=parent.n)
    for layer in g.gdn_layers:
        cache.layers[layer] = repeated([parent.cache.layers[layer]], rows)
    return Session(cache, g)
