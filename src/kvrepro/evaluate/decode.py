"""Greedy decoding of one question on a batch of caches that share a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kvrepro.models.loading import LoadedModel


@dataclass(frozen=True)
class Answer:
    """Generated token ids without the end-of-sequence token, and why generation ended: ``eos`` or ``length``."""

    tokens: tuple[int, ...]
    finish_reason: str


@torch.no_grad()
def feed(lm: LoadedModel, cache: Any, tokens: torch.Tensor, rows: int = 1) -> None:
    """Run the model over a context ``[n]``, in each of the cache's ``rows``, for the sake of what the cache then
    holds."""
    lm.model(input_ids=tokens.expand(rows, -1).to(lm.device), past_key_values=cache, use_cache=True, logits_to_keep=1)


@torch.no_grad()
def answer(
    lm: LoadedModel, cache: Any, start: int, question: list[int], max_new_tokens: int, rows: int = 1
) -> list[Answer]:
    """Feed ``question`` at position ``start`` to each of the cache's ``rows`` and decode greedily.

    A row is finished at an end-of-sequence token; the batch stops when all rows are.
    """
    eos = torch.tensor(sorted(lm.eos), device=lm.device)
    step = torch.tensor(question, device=lm.device).expand(rows, -1)
    produced = torch.zeros(rows, 0, dtype=torch.long, device=lm.device)
    done = torch.zeros(rows, dtype=torch.bool, device=lm.device)
    for _ in range(max_new_tokens):
        t = step.shape[1]
        positions = torch.arange(start, start + t, device=lm.device).expand(rows, -1)
        out = lm.model(input_ids=step, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
        start += t
        step = out.logits[:, -1].argmax(-1, keepdim=True)
        produced = torch.cat([produced, step], 1)
        done |= torch.isin(step[:, 0], eos)
        if done.all():
            break
    ends = torch.isin(produced, eos)
    first = torch.where(ends.any(1), ends.int().argmax(1), produced.shape[1]).tolist()
    return [
        Answer(tuple(row[:end].tolist()), "eos" if end < len(row) else "length")
        for row, end in zip(produced.cpu(), first, strict=True)
    ]
