"""Admission masks of exact sparsity, which stand in for the gates' decisions (WG-KV Appendix I.3)."""

from __future__ import annotations

import torch


def random_admission(
    layers: int, batch: int, kv_heads: int, n: int, kept: float, seed: int, device: str | torch.device = "cpu"
) -> torch.Tensor:
    """``[layers, batch, kv_heads, n]`` bool with exactly ``round(kept * n)`` positions admitted in every head."""
    count = round(kept * n)
    if count == n:
        return torch.ones(layers, batch, kv_heads, n, dtype=torch.bool, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    admitted = torch.zeros(layers, batch, kv_heads, n, dtype=torch.bool, device=device)
    for layer in admitted:
        order = torch.rand(batch, kv_heads, n, generator=generator, device=device).argsort(-1)
        layer.scatter_(-1, order[..., :count], True)
    return admitted
