"""Forking one prefill into physically compacted children that decode as a batch (GateSight §4.3, Appendix A)."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from kvrepro.cache.blocks import Blocks
from kvrepro.cache.ragged import EMPTY, RaggedLayer, pack
from kvrepro.cache.recurrent import repeated
from kvrepro.cache.session import Session
from kvrepro.models.capture import Prefill, decoder, decoder_layers
from kvrepro.models.loading import LoadedModel
from kvrepro.models.sparse import pooling


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
        packed, index = pack(keys, values, positions, mask), None
        if g.index:
            raw = parent.index_keys[number].expand(rows, 1, -1, -1)
            raw, _, places = pack(raw, raw, positions[:, :1], mask[:, :1])
            index = block_index(lm, layer, raw[:, 0], places[:, 0])
        cache.layers[layer] = RaggedLayer(*packed, seen=parent.n, block_index=index)
    for layer in g.gdn_layers:
        cache.layers[layer] = repeated([parent.cache.layers[layer]], rows)
    return Session(cache, g)


def block_index(lm: LoadedModel, layer: int, raw: torch.Tensor, positions: torch.Tensor) -> Blocks:
    """The index of an attention layer (its number in the model) over entries that stand at the front of each row: raw
    index keys ``[rows, slots, head_dim]`` and positions ``[rows, slots]``, EMPTY where a row holds no more."""
    block = lm.geometry.index.block
    # not by a call, which would be noted as a rotation of queries
    cos, sin = decoder(lm.model).rotary_emb.forward(raw, positions[:, ::block])
    pool = pooling(decoder_layers(lm.model)[layer].self_attn.indexer)
    return Blocks.of(raw, (positions != EMPTY).sum(-1), cos, sin, pool, block)
