"""Qwen Sparse Attention: which entries a query reads, by the model's own index (GateSight §5.4, Appendix H).

An index key stands for a block of consecutive entries of the cache: the mean of their raw keys, normalised and rotated
to the position of the first. A query reads the entries of the complete blocks that its index queries score best, and
those of the last, incomplete block. transformers decides this query by query under a mask; here it is decided for many
queries at once, over caches whose rows hold different entries, and without a mask of all queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kvrepro.models.geometry import BlockIndex, Geometry

#: ``pool(raw, cos, sin)``: index keys ``[rows, blocks, head_dim]`` of blocks of raw keys ``[rows, blocks, block,
#: head_dim]`` with the rotation of each block's first entry, ``[rows or 1, blocks, rotary_dim]``.
Pool = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Reads:
    """The entries that the queries of one forward of an attention layer read.

    queries ``[rows, t, heads, head_dim]``, of the index; keys ``[rows, blocks, head_dim]``, of which those of complete
    blocks are looked at; ``own`` ``[rows or 1, t]`` the number of each query's own entry among those of its row, from
    zero; ``numbers()`` gives that of every slot of the cache, ``[rows or 1, slots]``, negative where it is empty.
    """

    def __init__(
        self,
        index: BlockIndex,
        queries: torch.Tensor,
        keys: torch.Tensor,
        own: torch.Tensor,
        numbers: Callable[[], torch.Tensor],
    ):
        self._index, self._queries, self._keys, self._own = index, queries, keys, own
        self._numbers = numbers

    def mask(self, queries: slice, slots: int) -> torch.Tensor:
        """Which of the first ``slots`` slots some of the queries read: ``[rows, 1, queries, slots]`` bool. To be called
        once the layer holds the queries' own entries."""
        own = self._own[:, queries, None]
        complete = (own + 1) // self._index.block
        chosen = self._blocks(self._queries[:, queries], complete)
        number = self._numbers()[:, None, :slots]
        block = (number // self._index.block).expand(len(chosen), chosen.shape[1], -1)
        of_chosen = chosen.gather(-1, block.clamp(0, chosen.shape[-1] - 1)) & (block < complete)
        tail = (block == complete) & (number <= own)
        return ((of_chosen | tail) & (number >= 0))[:, None]

    def _blocks(self, queries: torch.Tensor, complete: torch.Tensor) -> torch.Tensor:
        """Which blocks are read, ``[rows, t, blocks]`` bool, of those before ``complete`` ``[rows or 1, t, 1]``; of
        equal scores the older block's, where transformers may take either."""
        scores = torch.einsum("rthd,rnd->rthn", queries.float(), self._keys.float()).relu_().sum(2)
        scores = scores / math.sqrt(queries.shape[-1])
        number = torch.arange(scores.shape[-1], device=scores.device)
        scores = scores.masked_fill(number >= complete, float("-inf"))
        most = self._index.budget // self._index.block
        if most >= scores.shape[-1]:
            return number < complete.expand(len(scores), -1, -1)
        least = scores.topk(most, -1).values[..., -1:]
        better, equal = scores > least, scores == least
        return better | (equal & (equal.cumsum(-1) <= most - better.sum(-1, keepdim=True)))


def install(model: Any, geometry: Geometry) -> None:
    """Let the attention layers of a model with an index say what they read as ``module.reads``, a :class:`Reads`, while
    the suite's attention runs; under any other attention the model's own code runs unchanged."""
    if geometry.index is None:
        return
    for module in [module for module in model.modules() if hasattr(module, "indexer")]:
        module.indexer.forward = partial(_choose, module, geometry.index, module.indexer.forward)
        module.register_forward_pre_hook(_mark, with_kwargs=True)


def _mark(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """transformers makes no mask for the suite's attention, and the layer cannot do without: one that says nothing."""
    if kwargs["attention_mask"] is None:
        everything = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=module.o_proj.weight.device)
        everything.kvrepro_reads = True
        kwargs = kwargs | {"attention_mask": everything}
    return args, kwargs


def _choose(module, index, forward, hidden_states, position_embeddings, attention_mask, cache):
    """In the place of the indexer's forward."""
    if not hasattr(attention_mask, "kvrepro_reads"):  # transformers made a mask, so it is its own attention that runs
        return forward(hidden_states, position_embeddings, attention_mask, cache)
    indexer, t = module.indexer, hidden_states.shape[1]
    cos, sin = position_embeddings
    now = cos[:, -t:], sin[:, -t:]
    split = [index.heads * index.head_dim, index.head_dim]
    queries, raw = indexer.index_qk_proj(hidden_states).split(split, -1)
    queries = indexer.q_layernorm(queries.unflatten(-1, (index.heads, -1)))
    queries = rotated(queries, *(x[:, :, None] for x in now))
    pool = pooling(indexer)
    layer = None if cache is None else cache.layers[module.layer_idx]
    blocks = getattr(layer, "block_index", None)
    if blocks is not None:  # a layer of this suite
        blocks.append(raw, *now, pool, layer.used)
        keys, own, numbers = blocks.keys, blocks.count[:, None] - t + torch.arange(t, device=raw.device), layer.numbers
    else:
        raw = raw if layer is None else layer.update_indexer(raw)
        entries = torch.arange(raw.shape[1], device=raw.device)[None]
        keys, own, numbers = _pooled(raw, cos, sin, pool, index.block), entries[:, -t:], lambda: entries
    module.reads = Reads(index, queries, keys, own, numbers)
    return attention_mask


def _pooled(raw: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pool: Pool, block: int) -> torch.Tensor:
    """Index keys of entries without gaps, from their raw keys ``[rows, n, head_dim]`` and rotations ``[rows, n,
    rotary_dim]``; the last block may be incomplete, and its key stands for nothing."""
    raw = torch.nn.functional.pad(raw, (0, 0, 0, -raw.shape[1] % block))
    return pool(raw.unflatten(1, (-1, block)), cos[:, ::block], sin[:, ::block])


def pooling(indexer: Any) -> Pool:
    """How a layer's indexer makes index keys of raw keys."""

    def pool(raw: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return rotated(indexer.k_layernorm(raw.float().mean(-2).to(raw.dtype)), cos, sin)

    return pool


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE on the first dimensions of ``x``, as many as ``cos`` and ``sin`` have."""
    turning, still = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turning.chunk(2, -1)
    return torch.cat([turning * cos + torch.cat([-second, first], -1) * sin, still], -1)
