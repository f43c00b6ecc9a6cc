"""How well a predictor ranks the entries of a head: Spearman, overlap@k, coverage@k (GateSight Appendix C)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import rankdata

from kvrepro.analysis.names import PERCENT
from kvrepro.errors import InputError


def top_count(percent: int, n: int) -> int:
    """k = max(4, ⌊percent n / 100⌋), but no more than there are entries."""
    return min(n, max(4, percent * n // 100))


def top(values: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the ``k`` largest along the last dimension; ties go to the older entry."""
    return values.argsort(dim=-1, descending=True, stable=True)[..., :k]


def spearman(predicted: torch.Tensor, utility: torch.Tensor) -> torch.Tensor:
    """Rank correlation along the last dimension, ties by mean rank, float64; 0 where either side is constant."""
    a, b = (rankdata(x.numpy(), axis=-1) for x in (predicted, utility))
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    norm = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return torch.from_numpy(np.divide((a * b).sum(-1), norm, out=np.zeros(norm.shape), where=norm > 0))


def ranking(predicted: torch.Tensor, utility: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every metric of METRICS: ``[predictors, kv_heads]`` float64.

    predicted ``[predictors, kv_heads, n]``, utility ``[kv_heads, n]``, raw. Raises InputError when a value is not
    finite.
    """
    if not (torch.isfinite(predicted).all() and torch.isfinite(utility).all()):
        raise InputError("a prediction or utility is not finite; label the document and train its predictors again.")
    n, utility = utility.shape[-1], utility.double()
    found = {"spearman": spearman(predicted, utility.expand(predicted.shape))}
    best_predicted, best = top(predicted, n), top(utility, n)
    for percent in PERCENT:
        k = top_count(percent, n)
        chosen, true = best_predicted[..., :k], best[:, :k]
        is_true = torch.zeros_like(utility).scatter_(1, true, 1.0).expand(predicted.shape)
        found[f"overlap@{percent}"] = is_true.gather(2, chosen).mean(-1)
        mass = utility.expand(predicted.shape).gather(2, chosen).sum(-1)
        found[f"coverage@{percent}"] = mass / utility.gather(1, true).sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    return found
