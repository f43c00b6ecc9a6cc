"""SnapKV in its query-agnostic form: the attention of the last context tokens (Li et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvrepro.errors import InputError
from kvrepro.methods.blocks import head_blocks
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill

TAKEN = ("max", "mean")


@dataclass
class SnapKV(Eviction):
    """Attention that the last ``window`` context tokens pay to each entry, summed over the window, pooled along the
    context, taken over the GQA group; the window itself is kept first. The question is withheld.

    GateSight Appendix G gives the window (32), the pooling (max) and the flat per-head budget. The pooling width
    follows the published configuration (7). Softmax in float32 over all keys up to the query's own; under a sparse
    attention over those that the query reads, so that entries which no query of the window selected score zero.

    ``pooling`` along the context: ``max``, as GateSight and the published configurations; ``mean``, the default of the
    published class, which counts places beyond the ends as zeros. ``group``, over the pooled scores of the query heads
    that share a KV head: ``max``, or ``mean``, as kvpress has it. The published code keeps entries per query head.
    """

    name = "snapkv"
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    group: str = "max"

    def __post_init__(self):
        if self.window < 1 or self.kernel < 1 or self.kernel % 2 == 0:
            raise InputError("snapkv: window must be at least 1 and kernel an odd number of at least 1.")
        for option in ("pooling", "group"):
            if (chosen := getattr(self, option)) not in TAKEN:
                raise InputError(f"snapkv.{option} is {chosen!r}; allowed: {', '.join(TAKEN)}.")

    @property
    def query_window(self) -> int:
        """Tokens whose queries are read."""
        return self.window

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Pooled window attention; window entries score above every other."""
        g, scores = prefill.geometry, []
        for layer, (keys, queries) in enumerate(zip(prefill.keys, prefill.queries, strict=True)):
            n = keys.shape[1]
            w = min(self.window, n)
            if queries.shape[1] < w:
                raise InputError(
                    f"snapkv reads {w} queries and the prefill kept {queries.shape[1]}; keep more of them."
                )
            q = queries[:, -w:].unflatten(0, (g.kv_heads, g.group))
            scale = g.head_dim**-0.5
            blocks = head_blocks(keys, g.head_dim + 3 * g.group * w)
            parts = ((q[heads].float(), keys[heads].float(), prefill.unread(layer, w), scale) for heads in blocks)
            scores.append(torch.cat([self._of_heads(*part) for part in parts]))
        return scores

    def _of_heads(self, q: torch.Tensor, keys: torch.Tensor, unread: torch.Tensor, scale: float) -> torch.Tensor:
        """Scores ``[heads, n]`` of some KV heads: q ``[heads, group, w, head_dim]``, keys ``[heads, n, head_dim]``,
        unread ``[w, n]``."""
        w, n = q.shape[2], keys.shape[1]
        logits = torch.einsum("hgwd,hnd->hgwn", q, keys) * scale
        paid = logits.masked_fill_(unread, float("-inf")).softmax(-1).sum(2)
        score = torch.full((len(keys), n), w + 1.0, device=keys.device)  # a sum over w rows never exceeds w
        if n > w:  # the window's own attention is not pooled into its neighbours
            pool = F.max_pool1d if self.pooling == "max" else F.avg_pool1d
            before = pool(paid[..., : n - w], self.kernel, stride=1, padding=self.kernel // 2)
            score[:, : n - w] = before.amax(1) if self.group == "max" else before.mean(1)
        return score
