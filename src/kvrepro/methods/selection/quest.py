"""Quest: read the pages whose keys could score highest with the query (Tang et al., 2024; WG-KV §5.4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.errors import InputError
from kvrepro.methods.selection.base import Held, Selection


@dataclass
class Quest(Selection):
    """The youngest ``local`` tokens are always read; the entries before them form pages of ``page`` in their order.

    A page's score is the bound Σ_d max(q_d · min_d, q_d · max_d) over its keys after RoPE, maximum over the GQA group.
    The best pages are read as far as ``budget`` has room beside the local tokens. The last page is read whenever it is
    not full. All layers select. Local tokens, group maximum and the last page follow the code of WG-KV, where the local
    region is the window of the admission policy; the published Quest has no local tokens and selects per query head.
    """

    name = "quest"
    page: int = 16
    local: int = 256

    def __post_init__(self):
        if self.page < 1 or self.local < 1:
            raise InputError("quest: page and local must be at least 1 token.")
        if self.budget < self.local + self.page:
            raise InputError(
                f"quest: a budget of {self.budget} entries has no room for a page of {self.page} beside {self.local} "
                "local tokens; raise it or lower quest.local."
            )

    def select(self, layer: int, query: torch.Tensor, cache: Held) -> torch.Tensor:
        """Local tokens and the best pages."""
        held = cache.positions >= 0
        youngest = cache.positions.amax(-1, keepdim=True)
        paged = held & (cache.positions <= youngest - self.local)
        counts = paged.sum(-1, keepdim=True)
        # a GPU would be waited for: there all slots count, and pages without an entry are the last to be chosen
        most = cache.keys.shape[2] if counts.is_cuda else int(counts.max())
        pages = -(-most // self.page)
        room = (self.budget - self.local) // self.page
        if pages <= room:
            return held
        place = paged.cumsum(-1) - 1  # among the entries of pages, in their order
        scores = page_scores(query, self._pages(cache.keys, paged, place, pages))
        number = torch.arange(pages, device=held.device)
        scores = scores.masked_fill(number >= -(-counts // self.page), float("-inf"))
        scores = scores.masked_fill((number == counts // self.page) & (counts % self.page > 0), float("inf"))
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(room, dim=-1).indices, True)
        return (held & ~paged) | (paged & chosen.gather(-1, place.clamp(min=0) // self.page))

    def _pages(self, keys: torch.Tensor, paged: torch.Tensor, place: torch.Tensor, pages: int) -> torch.Tensor:
        """Keys page by page, ``[batch, kv_heads, pages, page, head_dim]``; what a head's pages have no entry for is
        another key of the head. A copy of whole rows: reducing in place, by a scatter, takes ten times as long."""
        batch, heads, slots, width = keys.shape
        size = pages * self.page
        order = place.new_zeros(batch, heads, size + 1)
        order.scatter_(-1, place.masked_fill(~paged, size), torch.arange(slots, device=keys.device).expand_as(place))
        first = slots * torch.arange(batch * heads, device=keys.device).view(batch, heads, 1)
        found = keys.reshape(-1, width).index_select(0, (order[..., :size] + first).flatten())
        return found.view(batch, heads, pages, self.page, width)


def page_scores(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Upper bounds of the scores that a page's keys can have, ``[batch, kv_heads, pages]`` float32.

    query ``[batch, query_heads, head_dim]``; keys ``[batch, kv_heads, pages, page, head_dim]``.
    """
    low, high = keys.amin(-2).float(), keys.amax(-2).float()
    q = query.float().view(*keys.shape[:2], -1, keys.shape[-1])
    return (q.clamp(min=0) @ high.mT + q.clamp(max=0) @ low.mT).amax(2)
