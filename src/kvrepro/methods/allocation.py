"""How many entries each layer and KV head keeps (GateSight §2, §4.2, Appendices D, F and G), and which ones.

The model-wide budget is ``layers x kv_heads x round(p (n - protected))`` entries, without the protected prefix. Every
rule spends exactly this budget.

Where a sparse attention indexes blocks (Appendix H), the heads of a layer keep the same entries, and a layer's count,
protected prefix included, is a multiple of a block: the budget of a layer is the multiple nearest to the above, of two
equally near the larger, and rules give out whole blocks, after the entries that fill the prefix's last one. A cache
that is kept whole stays as it is.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from kvrepro.errors import InputError, unknown

RULES = ("flat", "gate_proportional", "gate_proportional_per_head", "pyramid", "global")
PYRAMID_BETA = 20  #: the last layer of ``pyramid`` gets the flat budget divided by this (Appendix F)
PYRAMID_LEAST = 4  #: entries that ``pyramid`` leaves to every head at least


def per_head_budget(kept: float, n: int, protected: int, block: int = 1) -> int:
    """Entries a head keeps on average at kept fraction ``kept``; InputError outside (0, 1] or when nothing is left."""
    if not 0 < kept <= 1:
        raise InputError(f"kept fraction {kept} is outside (0, 1]; it is the share that is kept, not removed.")
    budget = round(kept * (n - protected))
    if budget < n - protected:
        whole = (protected + budget + block // 2) // block
        budget = min(whole, n // block) * block - protected
    if budget < 1:
        raise InputError(f"kept fraction {kept} of {n - protected} tokens keeps nothing; raise it or the context.")
    return budget


def shared(scores: list[torch.Tensor]) -> list[torch.Tensor]:
    """Scores of heads that keep the same entries: the largest of a layer's, ``[1, n]`` (Appendix H)."""
    return [score.amax(0, keepdim=True) for score in scores]


def largest_remainder(shares: list[Fraction], total: int, cap: int) -> list[int]:
    """Integers in proportion to ``shares`` that sum to ``total``, none above ``cap``; ties go to the earlier entry.

    What a capped entry cannot take is shared among the others in the same proportion, or equally if their shares are
    all zero. Exact: no rounding decides.
    """
    if total > cap * len(shares):
        raise InputError(f"a budget of {total} entries does not fit {len(shares)} caches of {cap}.")
    exact, free = [Fraction(cap)] * len(shares), set(range(len(shares)))
    while free:
        left = total - cap * (len(shares) - len(free))
        whole = sum(shares[i] for i in free)
        for i in free:
            exact[i] = shares[i] * left / whole if whole else Fraction(left, len(free))
        over = {i for i in free if exact[i] > cap}
        for i in over:
            exact[i] = Fraction(cap)
        if not over:
            break
        free -= over
    counts = [int(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def allocate(
    rule: str,
    kept: float,
    n: int,
    protected: int,
    layers: int,
    kv_heads: int,
    weights: torch.Tensor | None = None,
    scores: list[torch.Tensor] | None = None,
    block: int = 1,
) -> torch.Tensor:
    """Entries per attention layer and KV head, ``[layers, kv_heads]`` int64, without the protected prefix.

    * ``flat``: the same everywhere.
    * ``gate_proportional``: each layer in proportion to its mean output gate, all heads of a layer the same (§4.2).
    * ``gate_proportional_per_head``: each KV head in proportion to its own mean output gate (Appendix D).
    * ``pyramid``: falls arithmetically from the first layer to the last (Appendix F). A layer's share above what the
      context holds goes to the others; at least four entries a head, as far as the budget has them.
    * ``global``: as many as each head has among the best entries of the whole model (KVzip; Appendix G).

    ``weights`` are mean output gates, ``[layers, kv_heads]``, or ``[layers]`` where heads are not told apart;
    ``scores`` per layer ``[kv_heads, n]``. With a ``block`` above one ``kv_heads`` is one, as all keep the same. Raises
    InputError when a rule lacks what it needs.
    """
    k, body = per_head_budget(kept, n, protected, block), n - protected
    filling = -protected % block if k < body else body
    k, cap = (k - filling) // block, (body - filling) // block
    given = _given_out(rule, k, cap, protected, layers, kv_heads, weights, scores, block)
    return filling + block * given


def _given_out(rule, k, cap, protected, layers, kv_heads, weights, scores, block) -> torch.Tensor:
    """Blocks of each layer and head, ``k`` on average and at most ``cap``; see :func:`allocate`."""
    if rule.startswith("gate_proportional") and weights is None:
        raise InputError(f"allocation {rule} needs a model with an attention output gate; use flat.")
    if rule == "flat":
        per_layer = [k] * layers
    elif rule == "gate_proportional":
        gates = weights if weights.ndim == 1 else weights.double().mean(1)
        per_layer = largest_remainder(_fractions(gates), layers * k, cap)
    elif rule == "gate_proportional_per_head":
        if weights.ndim == 1:
            raise InputError(f"allocation {rule} needs a gate per KV head and was given one per layer.")
        per_head = largest_remainder(_fractions(weights.flatten()), layers * kv_heads * k, cap)
        return torch.tensor(per_head).view(layers, kv_heads)
    elif rule == "pyramid":
        per_layer = pyramid(k, layers, cap, PYRAMID_LEAST // block)
    elif rule == "global":
        if scores is None:
            raise InputError("allocation global needs the scores of all entries.")
        best = _among_the_best(scores, layers * kv_heads * k * block, protected)
        if block == 1:
            return best
        per_layer = largest_remainder(_fractions(best[:, 0]), layers * k, cap)
    else:
        raise unknown("allocation", rule, RULES, "allocation")
    return torch.tensor(per_layer)[:, None].expand(layers, kv_heads).contiguous()


def _fractions(x: torch.Tensor) -> list[Fraction]:
    return [Fraction(v) for v in x.tolist()]


def pyramid(k: int, layers: int, cap: int, least: int = PYRAMID_LEAST) -> list[int]:
    """Per-head budgets of the layers: k_max - f (k_max - k_min) / (layers - 1), k_min = k / β, k_max = 2k - k_min.

    They sum to ``layers * k``. The ``least`` of each is set aside first and the rest follows the schedule above it,
    which leaves the schedule as it is wherever no layer falls below the least or above ``cap``.
    """
    least, steps = min(least, k), max(layers - 1, 1)
    k_min = Fraction(k, PYRAMID_BETA)
    k_max = 2 * k - k_min
    above = [max(k_max - f * (k_max - k_min) / steps - least, Fraction(0)) for f in range(layers)]
    return [least + x for x in largest_remainder(above, layers * (k - least), cap - least)]


def _among_the_best(scores: list[torch.Tensor], total: int, protected: int) -> torch.Tensor:
    """How many of the ``total`` best entries each head of each layer has; ties go to the earlier layer, head, entry."""
    body = torch.stack([s[:, protected:] for s in scores])  # [layers, kv_heads, n - protected]
    best = body.flatten().argsort(descending=True, stable=True)[:total]
    rows = body.shape[0] * body.shape[1]
    return torch.bincount(best // body.shape[2], minlength=rows).view(body.shape[:2]).cpu()


def ranked(scores: list[torch.Tensor], protected: int, context: str) -> list[torch.Tensor]:
    """Rank of each entry beyond the protected prefix within its head, 0 for the best: per layer ``[kv_heads, n -
    protected]``. Ties go to the older entry. A score that is not finite raises InputError naming ``context``."""
    finite = torch.stack([torch.isfinite(score).all() for score in scores])
    if not finite.all():
        layer = finite.int().argmin()
        raise InputError(f"{context}: scores of attention layer {layer} are not finite; the row is not evaluated.")
    orders = [score[:, protected:].argsort(dim=-1, descending=True, stable=True) for score in scores]
    return [order.argsort(dim=-1) for order in orders]


def keep_top(ranks: list[torch.Tensor], counts: torch.Tensor, protected: int) -> list[torch.Tensor]:
    """Masks ``[kv_heads, n]`` of the entries kept: the protected prefix and each head's best ``counts[layer, head]``,
    by :func:`ranked`."""
    counts = counts.to(ranks[0].device)
    best = [rank < count[:, None] for rank, count in zip(ranks, counts, strict=True)]
    return [torch.nn.functional.pad(mask, (protected, 0), value=True) for mask in best]
