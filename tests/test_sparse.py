"""Qwen Sparse Attention: what the suite computes on caches with an index, against transformers' own code."""

from __future__ import annotations

import copy

import pytest
import torch
from sparse_tools import BLOCK, BUDGET
from transformers import DynamicCache

from kvrepro.cache.fork import fork
from kvrepro.models import attention
from kvrepro.models.capture import prefill

STEPS = 9


@pytest.fixture
def stock(tiny_sparse):
    """The model under transformers' own code, index and all."""
    tiny_sparse.model.set_attn_implementation("sdpa")
    yield tiny_sparse
    tiny_sparse.model.set_attn_implementation(attention.NAME)


@torch.no_grad()
def logits(lm, ids, cache=None, start=0):
    rows = ids.expand(1 if ids.ndim == 1 else len(ids), -1)
    positions = torch.arange(start, start + rows.shape[1]).expand(len(rows), -1)
    return lm.model(input_ids=rows, position_ids=positions, past_key_values=cache, use_cache=cache is not None).logits


def masks(parent, kept):
    """The same list for both heads of every layer."""
    return [kept.expand(parent.geometry.kv_heads, -1)] * len(parent.geometry.attention_layers)


def test_a_prefill_is_that_of_transformers(stock, tokens):
    cache = DynamicCache(config=stock.model.config)
    expected = logits(stock, tokens, cache)
    stock.model.set_attn_implementation(attention.NAME)
    parent = prefill(stock, tokens)
    torch.testing.assert_close(parent.next_logits, expected[0, -1], rtol=0, atol=1e-4)
    for number, i in enumerate(stock.geometry.attention_layers):
        torch.testing.assert_close(parent.keys[number], cache.layers[i].keys[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(parent.index_keys[number], cache.layers[i].indexer_keys[0], rtol=0, atol=1e-4)
    assert all(reads.sum(-1).max() <= BUDGET + BLOCK - 1 for reads in parent.reads)


def compacted(lm, parent, kept):
    """transformers' own cache of what is kept, of one list for all layers; its own code regroups it."""
    cache, where = copy.deepcopy(parent.cache), kept.nonzero()[:, 0]
    for i in parent.geometry.attention_layers:
        layer = cache.layers[i]
        layer.keys, layer.values = layer.keys[:, :, where], layer.values[:, :, where]
        layer.indexer_keys = layer.indexer_keys[:, where]
    first = cache.layers[parent.geometry.attention_layers[0]]
    first.indexer_position_ids = first.indexer_position_ids[..., where]
    return cache


def continued(lm, caches, n, fed):
    """Logits of a question of several tokens and of single tokens after it."""
    parts = [logits(lm, fed[:, :STEPS], caches, n)]
    return torch.cat(parts + [logits(lm, fed[:, i : i + 1], caches, n + i) for i in range(STEPS, fed.shape[1])], 1)


KEPT = {
    "all": lambda n: torch.ones(n, dtype=torch.bool),
    "blocks": lambda n: torch.arange(n) % 3 != 1,
    "few": lambda n: torch.arange(n) % 9 == 2,
    "no blocks": lambda n: torch.arange(n) % 50 == 7,
}


@pytest.mark.parametrize("n", [100, 97, 95, 94])
def test_children_answer_as_transformers_would_from_what_they_keep(stock, tokens, n):
    stock.model.set_attn_implementation(attention.NAME)
    parent = prefill(stock, tokens[:n])
    kept = [choose(n) for choose in KEPT.values()]
    session = fork(stock, parent, [masks(parent, each) for each in kept])
    fed = torch.randint(1, 320, (len(kept), STEPS + 11), generator=torch.Generator().manual_seed(1))
    found = continued(stock, session.cache, n, fed)
    session.rewind()
    again = continued(stock, session.cache, n, fed)
    stock.model.set_attn_implementation("sdpa")
    for row, each in enumerate(kept):
        expected = continued(stock, compacted(stock, parent, each), n, fed[row : row + 1])[0]
        for answer in (
            found,
            again,
        ):  # rounding grows from token to token; another selection changes logits by about one
            torch.testing.assert_close(answer[row], expected, rtol=0, atol=0.02)
