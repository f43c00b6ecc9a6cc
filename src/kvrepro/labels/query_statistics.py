"""Measuring the query statistics of a model on text (TriAttention; GateSight Appendix G: 32K tokens)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kvrepro.errors import InputError
from kvrepro.methods.query_statistics import QueryStatistics, bands
from kvrepro.models.attention import observing
from kvrepro.models.loading import LoadedModel


@torch.no_grad()
def calibrate(lm: LoadedModel, documents: Iterable[torch.Tensor], tokens: int = 32768) -> QueryStatistics:
    """Statistics over the first ``tokens`` tokens of ``documents``, token ids ``[n]`` each, one context a document.

    The queries are those that the model's attention receives, turned back by their positions, so that a query norm and
    whatever scale RoPE applies are in them. Raises InputError when the documents hold too few tokens, or one is longer
    than the model's limit.
    """
    if tokens < 1:
        raise InputError("query statistics: tokens must be at least 1.")
    g, left = lm.geometry, tokens
    number = {layer: i for i, layer in enumerate(g.attention_layers)}
    frequencies = rotary_frequencies(lm)
    total = torch.zeros(len(number), g.query_heads, len(frequencies), dtype=torch.complex128, device=lm.device)
    size = torch.zeros_like(total, dtype=torch.float64)

    def add(module, query, *_):
        real, imaginary = bands(query[0].double(), g.rotary_dim)
        angle = torch.arange(query.shape[2], device=lm.device)[:, None] * frequencies.double()
        q = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), -angle)
        total[number[module.layer_idx]] += q.sum(1)
        size[number[module.layer_idx]] += q.abs().sum(1)

    for document in documents:
        part = document[:left]
        if len(part) > g.max_positions:
            raise InputError(f"query statistics: a document has {len(part)} tokens; {lm.name} takes {g.max_positions}.")
        if len(part):
            with observing(add):
                lm.model(input_ids=part[None].to(lm.device), use_cache=False, logits_to_keep=1)
        left -= len(part)
        if not left:
            break
    if left:
        raise InputError(f"query statistics: the documents hold {tokens - left} tokens, not {tokens}; give more text.")
    return QueryStatistics(
        mean=(total / tokens).to(torch.complex64).cpu(),
        magnitude=(size / tokens).float().cpu(),
        frequencies=frequencies.cpu(),
    )


def rotary_frequencies(lm: LoadedModel) -> torch.Tensor:
    """Radians per token of each band ``[head_dim / 2]`` float32: the model's own, and zero where RoPE does not turn."""
    body = lm.model.get_decoder()
    rotated = getattr(body, "language_model", body).rotary_emb.inv_freq.float()
    still = rotated.new_zeros(lm.geometry.head_dim // 2 - len(rotated))
    return torch.cat([rotated, still])
