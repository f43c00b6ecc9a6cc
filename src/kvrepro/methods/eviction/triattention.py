"""TriAttention: score keys by the attention that average queries would pay them from afar (Mao et al., 2026)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.errors import InputError
from kvrepro.methods import query_statistics
from kvrepro.methods.blocks import head_blocks
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill
from kvrepro.models.loading import LoadedModel


@dataclass
class TriAttention(Eviction):
    """Score of a key at position p in a context of n tokens, for a query head:

        mean over δ of Σ_f |E q_f| |k_f| cos(ω_f (n - p + δ) + φ_f)  +  Σ_f (E|q_f| - |E q_f|) |k_f|

    with φ_f = arg(E q_f · conj k_f), k before RoPE, and δ in {1, 2, 4, ..., 2^(offsets - 1)}; then the maximum over the
    GQA group. Flat budgets and statistics from 32K tokens of text: GateSight Appendix G. ``query_statistics`` is the
    file of the model's :class:`~kvrepro.methods.query_statistics.QueryStatistics`.

    The cached key is k_f e^{i ω_f p}, so the first sum is the dot product of the cached key with the mean query turned
    to n + δ, and the mean over δ can be taken of the query: positions and un-rotated keys are not needed.
    """

    name = "triattention"
    artifacts = ("query_statistics",)
    query_statistics: str
    offsets: int = 17

    def __post_init__(self):
        if self.offsets < 1:
            raise InputError("triattention: offsets must be at least 1.")

    def prepare(self, lm: LoadedModel) -> None:
        """Load the statistics; InputError when the file is missing, corrupt or another model's."""
        self.use(query_statistics.load(self.query_statistics, lm))

    def use(self, statistics: query_statistics.QueryStatistics) -> None:
        """Score with these statistics."""
        self._statistics = statistics

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Expected attention, not normalised."""
        g, known, scores = prefill.geometry, self._statistics, []
        distances = prefill.n + 2.0 ** torch.arange(self.offsets, dtype=torch.float64)
        angles = known.frequencies.double()[:, None] * distances
        turned = known.mean * torch.polar(torch.ones_like(angles), angles).mean(-1)  # [layers, query_heads, bands]
        spread = known.magnitude - known.mean.abs()
        for centre, rest, keys in zip(turned, spread, prefill.keys, strict=True):
            weights = torch.stack([centre.real, centre.imag, rest]).float().to(keys.device)
            weights = weights.unflatten(1, (g.kv_heads, g.group)).mT  # [3, kv_heads, bands, group]
            blocks = head_blocks(keys, 3 * g.head_dim)
            scores.append(torch.cat([_of_heads(keys[h].float(), weights[:, h], g.rotary_dim) for h in blocks]))
        return scores


def _of_heads(keys: torch.Tensor, weights: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    """Scores ``[heads, n]`` of keys ``[heads, n, head_dim]`` with weights ``[3, heads, bands, group]``."""
    real, imaginary = query_statistics.bands(keys, rotary_dim)
    attention = real @ weights[0] + imaginary @ weights[1] + torch.hypot(real, imaginary) @ weights[2]
    return attention.amax(-1)
