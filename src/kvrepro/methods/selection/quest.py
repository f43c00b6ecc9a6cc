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
        pages = -(-int(counts.max()) // self.page)
        room = (self.budget - self.local) // self.page
        if pages <= room:
            return held
        page = torch.where(paged, (paged.cumsum(-1) - 1) // self.page, pages)  # what is in no page goes to one too many
        scores = page_scores(query, cache.keys, page, pages)
        number = torch.arange(pages, device=page.device)
        scores = scores.masked_fill(number >= -(-counts // self.page), float("-inf"))
        scores = scores.masked_fill((number == counts // self.page) & (counts % self.page > 0), float("inf"))
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(room, dim=-1).indices, True)
        chosen = torch.cat([chosen, torch.zeros_like(chosen[..., :1])], -1)
        return (held & ~paged) | (paged & chosen.gather(-1, page))


def page_scores(query: torch.Tensor, keys: torch.Tensor, page: torch.Tensor, pages: int) -> torch.Tensor:
    """Upper bounds of the scores that a page's keys can have, ``[batch, kv_heads, pages]`` float32.

    query ``[batch, query_heads, head_dim]``; keys ``[batch, kv_heads, entries, head_dim]``; page, of each entry,
    ``[batch, kv_heads, entries]``, ``pages`` for an entry of none.
    """
    batch, heads, _, width = keys.shape
    index, shape = page[..., None].expand(keys.shape), (batch, heads, pages + 1, width)
    low, high = (
        keys.new_zeros(shape).scatter_reduce_(2, index, keys, kind, include_self=False)[:, :, :pages].float()
        for kind in ("amin", "amax")
    )
    q = query.float().view(batch, heads, -1, width)
    return (q.clamp(min=0) @ high.mT + q.clamp(max=0) @ low.mT).amax(2)
