"""Bounded SnapKV: on overflow, the entries that the observation window attends to least (WG-KV Appendix K.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvrepro.errors import InputError, unknown
from kvrepro.methods.bounding.base import Bounding

OVER = ("held", "evictable")


@dataclass
class SnapKV(Bounding):
    """Attention of the last ``window`` queries, maximum over the GQA group, summed over the window, max-pooled over
    ``kernel`` neighbours, for each KV head on its own.

    ``over`` says which keys the softmax and the pooling run over: all that the head holds, as the paper has it, or only
    those that may be evicted, as in the published code, which takes the mean over the window for the sum; the order is
    the same. The paper does not say that the window itself is kept; the published code keeps its local cache, which has
    the same length.
    """

    name = "snapkv"
    kernel: int = 5
    over: str = "held"

    def __post_init__(self):
        super().__post_init__()
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InputError(f"snapkv: kernel is {self.kernel}; give an odd number of at least 1.")
        if self.over not in OVER:
            raise unknown("over", self.over, OVER, "snapkv.over")

    def importance(
        self, queries: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor, evictable: torch.Tensor
    ) -> torch.Tensor:
        """The score S of Appendix K.1."""
        if self.over == "evictable":
            visible = visible & evictable[:, :, None]
        grouped = queries.unflatten(1, (keys.shape[1], -1)).float()
        logits = torch.einsum("rhgwd,rhnd->rhgwn", grouped, keys.float()) * keys.shape[-1] ** -0.5
        logits = logits.masked_fill_(~visible[:, :, None], float("-inf"))
        paid = logits.softmax(-1).nan_to_num_(0.0)  # a head without an entry to evict has nothing to attend to
        return F.max_pool1d(paid.amax(2).sum(2), self.kernel, stride=1, padding=self.kernel // 2)
