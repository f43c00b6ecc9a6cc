"""A cache that refuses entries before the write: sliding local region plus admitted global region (WG-KV §3.1, §4).

This is the exact reference on any device. A query at position i sees an entry at position j ≤ i when i - j < window or
when the entry was admitted (the mask of §4.2); an entry that has left the window without being admitted is not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from kvrepro.cache.ragged import EMPTY, RaggedLayer, pack
from kvrepro.models.loading import LoadedModel

#: ``admit(layer, keys, positions) -> [batch, kv_heads, t] bool``; keys ``[batch, kv_heads, t, head_dim]`` after RoPE.
Admit = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Policy:
    """What an admission method decides for one context: the local window and who is admitted beyond it.

    ``entries`` is the number of context entries each head then holds, which the evaluation checks.
    """

    window: int
    admit: Admit
    entries: int


class AdmittedLayer(RaggedLayer):
    """A ragged layer that stores the last ``window`` tokens and, of the older ones, those that were admitted."""

    def __init__(self, index: int, policy: Policy, lm: LoadedModel):
        g = lm.geometry
        empty = torch.zeros(1, g.kv_heads, 0, g.head_dim, dtype=lm.dtype, device=lm.device)
        super().__init__(empty, empty, empty[..., 0].long(), seen=0)
        self.index, self.policy = index, policy
        self.admitted = torch.zeros(1, g.kv_heads, 0, dtype=torch.bool, device=lm.device)
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Decide on the new entries, hand all that the new queries may see to attention, store what is to stay."""
        t = key_states.shape[2]
        now = torch.arange(self.seen, self.seen + t, device=self.device)
        new_admitted = self.policy.admit(self.index, key_states, now)
        keys = torch.cat([self._keys, key_states], 2)
        values = torch.cat([self._values, value_states], 2)
        positions = torch.cat([self.positions, now.expand(*key_states.shape[:2], t)], 2)
        admitted = torch.cat([self.admitted, new_admitted], 2)
        self.seen += t
        self._pending = positions, admitted
        stays = (positions != EMPTY) & (admitted | (positions >= self.seen - self.policy.window))
        self._keys, self._values, self.positions = pack(keys, values, positions, stays)
        self.admitted = pack(admitted[..., None], admitted[..., None], positions, stays)[0][..., 0]
        self.used = self._keys.shape[2]
        keys.kvrepro_layer = self
        return keys, values

    def visible(self, t: int) -> torch.Tensor:
        """The mask of §4.2 over what :meth:`update` handed out: ``[batch, kv_heads, t, entries]`` bool."""
        positions, admitted = self._pending
        self._pending = None
        if (positions == positions[:, :1]).all():  # a first prefill: one age matrix serves all heads
            positions = positions[:, :1]
        if (admitted == admitted[:, :1]).all():
            admitted = admitted[:, :1]
        age = torch.arange(self.seen - t, self.seen, device=self.device)[:, None] - positions[:, :, None]
        return (positions != EMPTY)[:, :, None] & (age >= 0) & ((age < self.policy.window) | admitted[:, :, None])


def admitted_cache(lm: LoadedModel, policy: Policy) -> Any:
    """An empty transformers cache whose attention layers follow ``policy``."""
    cache = DynamicCache(config=lm.model.config)
    for index in lm.geometry.attention_layers:
        cache.layers[index] = AdmittedLayer(index, policy, lm)
    return cache
