"""A cache that refuses entries before the write: sliding local region plus admitted global region (WG-KV §3.1, §4).

A query at position i sees an entry at position j ≤ i when i - j < window or when the entry was admitted (the mask of
§4.2); an entry that has left the window without being admitted is not stored. On a GPU the vertical-slash kernel
prefills a context; everything else is exact masks on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from kvrepro.cache.ragged import EMPTY, RaggedLayer, packed, packing
from kvrepro.cache.recurrent import chosen_rows
from kvrepro.models.loading import LoadedModel

#: ``gate(layer, keys_pre_rope, keys, positions) -> [batch, kv_heads, t]`` in [0, 1]; both keys ``[batch, kv_heads, t,
#: head_dim]``, before and after RoPE; positions ``[t]`` or ``[batch, 1, t]``.
Gate = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Policy:
    """What an admission method decides for one context: the local window and who is admitted beyond it.

    An entry is admitted where its gate is at least ``threshold`` (τ, §4.2). ``entries`` is the number of context
    entries that each head then holds, None where the gates decide it. In a forward of several tokens all queries of a
    ``block`` of positions see as far back as its first one does.
    """

    window: int
    gate: Gate
    threshold: float = 0.5
    entries: int | None = None
    block: int = 1


def alike(policies: Sequence[Policy | None], device: torch.device) -> list[tuple[Policy, torch.Tensor]]:
    """Policies of rows that may refuse something, those with one gate and threshold once, each with the numbers of its
    rows."""
    rows: dict[tuple, tuple[Policy, list[int]]] = {}
    for row, policy in enumerate(policies):
        if policy is not None and policy.gate is not everything:
            rows.setdefault((policy.gate, policy.threshold), (policy, []))[1].append(row)
    return [(policy, torch.tensor(own, device=device)) for policy, own in rows.values()]


def everything(layer: int, keys_pre_rope: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A gate that admits all entries."""
    return torch.ones(keys.shape[:3], device=keys.device)


EVERYTHING = Policy(1, everything)  #: no admission


class AdmittedLayer(RaggedLayer):
    """A ragged layer that stores the last tokens of the window and, of the older ones, those that were admitted.

    Every row of the batch has a policy of its own. ``keys_pre_rope`` holds, by layer number, the keys before RoPE of
    the forward that is running. ``decisions`` notes for every token that passed whether it was admitted, ``[batch,
    kv_heads, t]`` a call, so that what is held can be compared with it.
    """

    def __init__(self, index: int, policies: list[Policy], keys_pre_rope: dict[int, torch.Tensor], lm: LoadedModel):
        g = lm.geometry
        empty = torch.zeros(len(policies), g.kv_heads, 0, g.head_dim, dtype=lm.dtype, device=lm.device)
        super().__init__(empty, empty, empty[..., 0].long(), seen=0)
        self.index, self._policies, self.keys_pre_rope = index, policies, keys_pre_rope
        self._windows, self.blocks = torch.tensor(
            [[p.window for p in policies], [p.block for p in policies]], device=lm.device
        )[..., None, None]
        self._alike = alike(policies, lm.device)
        self._admitted = torch.zeros(*empty.shape[:3], dtype=torch.bool, device=lm.device)
        self.decisions: list[torch.Tensor] = []

    @property
    def policies(self) -> list[Policy]:
        """Admission policy of each row."""
        return self._policies

    @property
    def admitted(self) -> torch.Tensor:
        """Which slots are seen beyond the window, ``[batch, kv_heads, slots]`` bool."""
        return self._admitted

    @property
    def windows(self) -> torch.Tensor:
        """Tokens of each row's local window, ``[batch, 1, 1]``."""
        return self._windows

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Decide on the new entries, hand all that the new queries may see to attention, store what is to stay."""
        t = key_states.shape[2]
        now = torch.arange(self.seen, self.seen + t, device=self.device)
        decided = self._decide(self.keys_pre_rope.pop(self.index), key_states, now)
        self.decisions.append(decided)
        keys = torch.cat([self._keys, key_states], 2)
        values = torch.cat([self._values, value_states], 2)
        positions = torch.cat([self.positions, now.expand(*key_states.shape[:2], t)], 2)
        admitted = torch.cat([self._admitted, decided], 2)
        self.seen += t
        self._handed = positions, admitted
        stays = (positions != EMPTY) & (admitted | (positions >= self.seen - self._windows))
        self._store(keys, values, positions, admitted, stays)
        keys.kvrepro_layer = self
        return keys, values

    def _store(self, keys, values, positions, admitted, stays) -> None:
        order, filled = packing(stays)
        self._keys, self._values, self.positions = packed(keys, values, positions, order, filled)
        self._admitted = admitted.gather(2, order) & filled
        self.used = self._keys.shape[2]

    def drop(self, rows: torch.Tensor, gone: torch.Tensor) -> None:
        """Give up entries of some rows, ``gone`` ``[rows, kv_heads, slots]`` bool."""
        stays = self.held()
        stays[rows] &= ~gone
        self._store(self._keys, self._values, self.positions, self._admitted, stays)

    def _decide(self, keys_pre_rope: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        decided = torch.ones(keys.shape[:3], dtype=torch.bool, device=self.device)
        for policy, rows in self._alike:
            gates = policy.gate(self.index, keys_pre_rope[rows], keys[rows], positions)
            decided.index_copy_(0, rows, gates >= policy.threshold)
        return decided

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of the last tokens. On a GPU the first ones are prefilled by the vertical-slash kernel (§4.2), row
        after row, since each has a window of its own; elsewhere the mask is made."""
        t = query.shape[2]
        if not self._by_kernel(query) or t == 1 or t != keys.shape[2]:
            return super().attend(query, keys, values, scaling)
        from kvrepro.kernels.vertical_slash import vertical_slash_attention

        if self.watch is not None:
            self.watch(query)
        rows = [
            vertical_slash_attention(
                *(x[row : row + 1] for x in (query, keys, values, self._handed[1])),
                window=min(policy.window, t),
                granular=policy.block > 1,
                scale=scaling,
            )
            for row, policy in enumerate(self._policies)
        ]
        return torch.cat(rows)

    @staticmethod
    def _by_kernel(query: torch.Tensor) -> bool:
        return query.is_cuda

    def seen_by(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The mask of §4.2 over what :meth:`update` handed out, and the positions of that."""
        positions, admitted = self._handed
        places = positions.masked_fill(positions == EMPTY, self.seen).int()  # an empty slot is as one yet to come
        if not places.is_cuda:  # where this would be waited for, and a kernel prefills
            if (places == places[:1, :1]).all():  # a first prefill: one age matrix serves all rows and heads
                places = places[:1, :1]
            if (admitted == admitted[:, :1]).all():
                admitted = admitted[:, :1]
        now = torch.arange(self.seen - t, self.seen, device=self.device, dtype=torch.int32)[:, None]
        age = now - places[:, :, None]
        reach = self._windows[..., None] + (now % self.blocks[..., None] if t > 1 else 0)
        reach = reach.clamp(max=torch.iinfo(torch.int32).max).int()
        return ((age < reach) | admitted[:, :, None]) & (age >= 0), positions

    def take(self, rows: torch.Tensor) -> None:
        """Hold the rows of these numbers in the place of all, each as often as it is named."""
        names = ("_keys", "_values", "positions", "_admitted", "_windows", "blocks")
        for name in names:
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self._policies = [self._policies[row] for row in rows.tolist()]
        self._alike = alike(self._policies, self.device)
        self.decisions = [each.index_select(0, rows) for each in self.decisions]

    def mark(self) -> None:
        """Remember the present content; no update changes a stored tensor, so nothing is copied."""
        self._marked = self._keys, self._values, self.positions, self._admitted, self.used, self.seen
        self._decided = len(self.decisions)

    def rewind(self) -> None:
        """Return to what was marked."""
        self._keys, self._values, self.positions, self._admitted, self.used, self.seen = self._marked
        del self.decisions[self._decided :]


def admitted_cache(lm: LoadedModel, policies: list[Policy], keys_pre_rope: dict[int, torch.Tensor]) -> DynamicCache:
    """An empty transformers cache whose attention layers follow ``policies``, one a row of the batch; it is to be used
    within ``keys_before_rope(lm, keys_pre_rope)``."""
    cache = DynamicCache(config=lm.model.config)
    for index in lm.geometry.attention_layers:
        cache.layers[index] = AdmittedLayer(index, policies, keys_pre_rope, lm)
    return cache


def take_rows(lm: LoadedModel, cache: DynamicCache, rows: Sequence[int]) -> None:
    """Let an admitted cache hold the rows of these numbers in the place of all, each as often as it is named."""
    chosen = torch.tensor(rows, device=lm.device)
    for i in lm.geometry.attention_layers:
        cache.layers[i].take(chosen)
    for i in lm.geometry.gdn_layers:
        cache.layers[i] = chosen_rows(cache.layers[i], chosen)
