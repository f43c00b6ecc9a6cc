"""Sampling of tokens from logits by given draws, so that the same draws give the same tokens on any device."""

from __future__ import annotations

from typing import Protocol

import torch


class Settings(Protocol):
    """How a token is drawn."""

    temperature: float
    top_p: float
    top_k: int


def draws_of(seed: int, *size: int) -> torch.Tensor:
    """Uniform draws in [0, 1), made on the CPU, so that they depend on the seed only."""
    return torch.rand(*size, generator=torch.Generator().manual_seed(seed))


def sample(logits: torch.Tensor, draws: torch.Tensor, sampling: Settings) -> torch.Tensor:
    """One token a row by top-k, then top-p, from uniform ``draws`` ``[rows]``; logits ``[rows, vocab]``."""
    best, ids = (logits / sampling.temperature).topk(min(sampling.top_k, logits.shape[-1]), dim=-1)
    p = best.softmax(-1)
    before = p.cumsum(-1) - p
    p = torch.where(before < sampling.top_p, p, 0)  # the smallest set that reaches top_p; the first is always in
    total = p.cumsum(-1)
    choice = (total <= draws[:, None] * total[:, -1:]).sum(-1, keepdim=True)
    last = (p > 0).sum(-1, keepdim=True) - 1
    return ids.gather(1, torch.minimum(choice, last))[:, 0]
