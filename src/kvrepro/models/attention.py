"""The one attention function the suite runs models with: transformers' own mathematics, plus three openings.

* A cache layer may hand out keys that carry ``kvrepro_layer``; it then says per row and KV head which entries a query
  sees (:mod:`kvrepro.cache.ragged`), which stock attention functions cannot express.
* A layer with an index says which entries a query reads (:mod:`kvrepro.models.sparse`).
* An observer may look at queries, keys, values and outputs (:mod:`kvrepro.models.capture`). It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

NAME = "kvrepro"
CHUNK = 256  # queries up to which attention is computed with its scores in memory
_observers: list[Callable] = []


@contextmanager
def observing(observer: Callable) -> Iterator[None]:
    """Call ``observer(module, query, key, value, output)`` after every attention of the block.

    query ``[batch, query_heads, t, head_dim]``, key and value ``[batch, kv_heads, tokens, head_dim]``, output
    ``[batch, t, query_heads, head_dim]``, before the output gate and the output projection.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def grouped_attention(query, key, value, visible, scaling):
    """Attention in which each KV head of each row sees its own entries.

    query ``[batch, query_heads, t, head_dim]``, key and value ``[batch, kv_heads, tokens, head_dim]``, where the last t
    tokens are the queries' own; ``visible(rows, seen)`` gives which of the first ``seen`` tokens some of the queries
    see, ``[batch, kv_heads or 1, rows, seen]`` bool. Softmax in float32. Returns ``[batch, query_heads, t, head_dim]``.
    The queries of a GQA group share one read of the keys.
    """
    b, heads, t, d = query.shape
    kv = key.shape[1]
    if t > CHUNK:  # a prefill: scores of all rows at once would not fit
        parts = []
        for start in range(0, t, CHUNK):
            rows = slice(start, min(start + CHUNK, t))
            seen = key.shape[2] - t + rows.stop  # the rows' own entries are the last, so later ones are not looked at
            mask = visible(rows, seen)
            mask = mask.repeat_interleave(heads // mask.shape[1], 1) if mask.shape[1] > 1 else mask
            part = query[:, :, rows], key[:, :, :seen], value[:, :, :seen]
            parts.append(F.scaled_dot_product_attention(*part, attn_mask=mask, scale=scaling, enable_gqa=heads != kv))
        return torch.cat(parts, 2)
    visible = visible(slice(0, t), key.shape[2])
    q = query.reshape(b, kv, heads // kv * t, d)
    scores = (q @ key.transpose(-1, -2)).float().view(b, kv, heads // kv, t, -1) * scaling
    weights = scores.masked_fill(~visible[:, :, None], float("-inf")).softmax(-1).to(value.dtype)
    return (weights.flatten(2, 3) @ value).view(b, heads, t, d)


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    scaling = module.head_dim**-0.5 if scaling is None else scaling
    layer = getattr(key, "kvrepro_layer", None)
    t, tokens = query.shape[2], key.shape[2]
    if (reads := getattr(module, "reads", None)) is not None:
        out = grouped_attention(query, key, value, reads.mask, scaling)
    elif layer is not None:
        out = layer.attend(query, key, value, scaling)
    else:
        mask = attention_mask
        if mask is None and 1 < t < tokens:  # a chunk after a prefix: causal, aligned to the end
            mask = torch.ones(t, tokens, dtype=torch.bool, device=query.device).tril(tokens - t)
        gqa = query.shape[1] != key.shape[1]
        causal = mask is None and t > 1
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=gqa
        )
    out = out.transpose(1, 2).contiguous()
    for observer in _observers:
        observer(module, query, key, value, out)
    if reads is not None:
        module.reads = None  # it holds tensors of the whole forward
    return out, None


AttentionInterface.register(NAME, _attention)
