"""Future utility of KV entries in closed form (GateSight §2, Eq. 2; Appendix H under sparse attention)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch


@dataclass(frozen=True)
class ContinuationStates:
    """What one attention layer needs of the continuation rows, all float32, after norm and RoPE.

    A row of continuation ``m`` sees the whole context and the continuation's own entries up to itself, or of these what
    ``reads`` says: the selected set of a sparse attention, which is held fixed when an entry is removed.
    """

    queries: torch.Tensor  #: [continuations, query_heads, t, head_dim]
    keys: torch.Tensor  #: [continuations, kv_heads, t, head_dim], the continuations' own entries
    values: torch.Tensor  #: [continuations, kv_heads, t, head_dim]
    lengths: tuple[int, ...]  #: tokens of each continuation, at least 1 and at most t
    reads: torch.Tensor | None = None  #: [continuations, t, n + t] bool; None where everything is read

    def sees(self, m: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, own keys and own values of continuation ``m``, cut to its length."""
        t = self.lengths[m]
        return self.queries[m, :, :t], self.keys[m, :, :t], self.values[m, :, :t]

    def hide(self, logits: torch.Tensor, m: int, first: int = 0) -> torch.Tensor:
        """Set to -inf what the rows from ``first`` on of continuation ``m`` do not see: logits ``[..., rows, n + t]``
        over a context of ``n`` entries and all own ones, changed in place."""
        t, rows = self.lengths[m], slice(first, first + logits.shape[-2])
        late = torch.ones(t, t, dtype=torch.bool, device=logits.device).triu(1)
        logits[..., -t:].masked_fill_(late[rows], float("-inf"))
        if self.reads is not None:
            logits.masked_fill_(~self.reads[m, rows, : logits.shape[-1]], float("-inf"))
        return logits


def utility(
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: ContinuationStates,
    projection: torch.Tensor,
    scaling: float,
    elements: int = 2**21,
) -> torch.Tensor:
    """max over a continuation's tokens of ‖Δr(t, i)‖ (Eq. 2), one value per continuation: [continuations, kv_heads, n].

    keys, values ``[kv_heads, n, head_dim]`` of the context; ``projection`` ``[hidden, query_heads * head_dim]`` is the
    weight of the output projection. The utility of Eq. 2 is the maximum over continuations. At most ``elements``
    attention weights are held at a time (further buffers of that size: about four).
    """
    kv_heads, n, d = values.shape
    group = rows.queries.shape[1] // kv_heads
    found = keys.new_zeros(len(rows.lengths), kv_heads, n, dtype=torch.float32)
    for h in range(kv_heads):
        head = _Head(projection[:, h * group * d : (h + 1) * group * d].float(), group)
        centre = values[h].float().mean(0)  # differences of values are all that counts; small ones lose fewer digits
        for m in range(len(rows.lengths)):
            q, own_k, own_v = rows.sees(m)
            k = torch.cat([keys[h].float(), own_k[h]])
            v = torch.cat([values[h].float(), own_v[h]]) - centre
            entry = head.entry_terms(v[:n])
            step = max(1, elements // (group * len(k)))
            for t in range(0, q.shape[1], step):
                chunk = q[h * group : (h + 1) * group, t : t + step]
                logits = rows.hide((chunk @ k.T).mul_(scaling), m, t)
                squared = head.squared_influence(logits, v, entry)
                found[m, h] = torch.maximum(found[m, h], squared.amax(0))
    return found.sqrt()


class _Head:
    """The closed form for one KV head with its GQA group of ``group`` query heads.

    With c_j = a_j / (1 - a_j) and M_gh = W_gᵀ W_h, ‖Δr(t, i)‖² = Σ_{g≤h} c_g c_h E_gh(t, i), where E_gh joins a term of
    the entry, v_iᵀ M_gh v_i, one of the row, o_gᵀ M_gh o_h, and their product (Appendix B). Each E_gh is one matmul of
    row vectors with entry vectors, to which the first two terms are appended.

    a → 1 needs care. At most one entry of a row can have a_j > 1/2: the one with the largest logit. For it c_j (v_i -
    o_j) = a_j (v_i - o'_j), with o'_j the output without the entry, a softmax over the rest. So this entry's influence
    is summed as a vector from o'_j, and the quadratic form is used only where every c_j ≤ 1: nothing is divided by
    1 - a there, and no digits are lost to the cancellation of large c².
    """

    def __init__(self, projection: torch.Tensor, group: int):
        self.projection = projection  # [hidden, group * d]
        self.pairs = list(combinations_with_replacement(range(group), 2))
        slices = projection.unflatten(1, (group, -1))
        self.metric = torch.einsum("xgd,xhe->ghde", slices, slices)  # W_gᵀ W_h

    def entry_terms(self, v: torch.Tensor) -> list[torch.Tensor]:
        """Per pair ``[n, d + 2]``: the entry's value, its own term, and a one for the row's term."""
        terms = []
        for g, h in self.pairs:
            own = ((v @ self.metric[g, h]) * v).sum(-1) * (1 if g == h else 2)
            terms.append(torch.cat([v, own[:, None], torch.ones_like(own)[:, None]], 1))
        return terms

    def _row_terms(self, o: torch.Tensor, g: int, h: int) -> torch.Tensor:
        """``[t, d + 2]`` to multiply with :meth:`entry_terms`; o ``[group, t, d]``."""
        to_g, to_h = o[h] @ self.metric[g, h].T, o[g] @ self.metric[h, g].T
        cross = -2 * to_g if g == h else -2 * (to_g + to_h)
        row = (o[g] * to_g).sum(-1) * (1 if g == h else 2)
        return torch.cat([cross, torch.ones_like(row)[:, None], row[:, None]], 1)

    def squared_influence(self, logits: torch.Tensor, v: torch.Tensor, entry: list[torch.Tensor]) -> torch.Tensor:
        """‖Δr(t, i)‖² for the n context entries, ``[t, n]``; logits ``[group, t, entries]`` are overwritten."""
        n = len(entry[0])
        top, best = logits.max(-1)
        rest = logits.scatter_(-1, best[..., None], float("-inf"))
        rest_lse = rest.logsumexp(-1)
        rest = rest.sub_(rest_lse[..., None]).exp_()
        without = rest @ v  # o', [group, t, d]
        share = torch.sigmoid(top - rest_lse)[..., None]  # a of the best entry
        o = without + share * (v[best] - without)
        a = rest.mul_(torch.sigmoid(rest_lse - top)[..., None])[..., :n]
        c = a / (1 - a)  # a ≤ 1/2; zero at the best entry

        squared = c.new_zeros(c.shape[1], n + 1)  # the last column takes the best entries that are not of the context
        context = squared[:, :n]
        for (g, h), right in zip(self.pairs, entry, strict=True):
            context += (self._row_terms(o, g, h) @ right.T).mul_(c[g]).mul_(c[h])
        context.clamp_(min=0)

        # the best entries of the row's heads, as vectors: [t, candidates, group, d]
        candidate = best.T  # [t, group]
        weight = c.gather(2, candidate.clamp(max=n - 1).expand(len(c), -1, -1)).permute(1, 2, 0)[..., None]
        ahead = v[candidate][:, :, None]
        is_best = (candidate[:, :, None] == best.T[:, None, :])[..., None]
        vectors = torch.where(
            is_best,
            share.transpose(0, 1)[:, None] * (ahead - without.transpose(0, 1)[:, None]),
            weight * (ahead - o.transpose(0, 1)[:, None]),
        )
        exact = (vectors.flatten(2) @ self.projection.T).square().sum(-1)  # [t, candidates]
        return squared.scatter_(1, candidate.clamp(max=n), exact)[:, :n]
