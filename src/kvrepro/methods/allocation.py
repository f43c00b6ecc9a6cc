"""How many entries each layer and KV head keeps (GateSight §2, §4.2, Appendices F and G), and which ones.

The model-wide budget is ``layers x kv_heads x round(p (n - protected))`` entries, without the protected prefix.
"""

from __future__ import annotations

import torch

from kvrepro.errors import InputError, unknown

RULES = ("flat", "gate_proportional")


def per_head_budget(kept: float, n: int, protected: int) -> int:
    """Entries a head keeps on average at kept fraction ``kept``; InputError outside (0, 1] or when nothing is left."""
    if not 0 < kept <= 1:
        raise InputError(f"kept fraction {kept} is outside (0, 1]; it is the share that is kept, not removed.")
    budget = round(kept * (n - protected))
    if budget < 1:
        raise InputError(f"kept fraction {kept} of {n - protected} tokens keeps nothing; raise it or the context.")
    return budget


def largest_remainder(shares: torch.Tensor, total: int, cap: int) -> torch.Tensor:
    """Integers in proportion to ``shares`` that sum to ``total``, none above ``cap``; ties go to the earlier entry.

    What a capped entry cannot take is shared among the others in the same proportion.
    """
    if total > cap * len(shares):
        raise InputError(f"a budget of {total} entries does not fit {len(shares)} caches of {cap}.")
    counts = torch.zeros(len(shares), dtype=torch.long)
    free = torch.ones(len(shares), dtype=torch.bool)
    weight = shares.double().clamp(min=1e-12).cpu()
    exact = torch.zeros(len(shares), dtype=torch.float64)
    while True:
        left = total - int(counts[~free].sum())
        exact[free] = weight[free] / weight[free].sum() * left
        over = free & (exact > cap)
        if not over.any():
            break
        counts[over], free[over] = cap, False
    counts[free] = exact[free].floor().long()
    missing = total - int(counts.sum())
    remainder = torch.where(free & (counts < cap), exact - counts, -1.0)
    counts[remainder.argsort(descending=True, stable=True)[:missing]] += 1
    return counts


def allocate(
    rule: str, kept: float, n: int, protected: int, layers: int, kv_heads: int, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Entries per attention layer and KV head, ``[layers, kv_heads]`` int64, without the protected prefix.

    ``weights`` ``[layers]`` are the layers' mean output gates for ``gate_proportional``: each layer gets the same count
    for all its heads, integerised by largest remainder over layers, capped at what there is.
    """
    k = per_head_budget(kept, n, protected)
    if rule == "flat":
        per_layer = torch.full((layers,), k)
    elif rule == "gate_proportional":
        if weights is None:
            raise InputError("allocation gate_proportional needs a model with an attention output gate; use flat.")
        per_layer = largest_remainder(weights, layers * k, cap=n - protected)
    else:
        raise unknown("allocation", rule, RULES, "allocation")
    return per_layer[:, None].expand(layers, kv_heads).contiguous()


def keep_top(scores: list[torch.Tensor], counts: torch.Tensor, protected: int, context: str) -> list[torch.Tensor]:
    """Masks ``[kv_heads, n]`` of the entries kept: the protected prefix and each head's best ``counts[layer, head]``.

    Ties go to the older entry. A score that is not finite raises InputError naming ``context``.
    """
    masks = []
    for layer, score in enumerate(scores):
        if not torch.isfinite(score).all():
            raise InputError(f"{context}: scores of attention layer {layer} are not finite; the row is not evaluated.")
        order = score[:, protected:].argsort(dim=-1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(
            1, order, torch.arange(order.shape[1], device=order.device).expand_as(order).contiguous()
        )
        mask = torch.ones_like(score, dtype=torch.bool)
        mask[:, protected:] = rank < counts[layer].to(order.device)[:, None]
        masks.append(mask)
    return masks
