"""Caches of several contexts, all methods' rows together, that decode as one batch, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from kvrepro.cache import blocks
from kvrepro.cache.admitted import alike
from kvrepro.cache.ragged import EMPTY, RaggedLayer
from kvrepro.cache.recurrent import repeated
from kvrepro.models.loading import LoadedModel


class JoinedLayer(RaggedLayer):
    """The rows of several ragged or admitted layers, copied, with room for ``room`` more tokens in each.

    A token a row is appended at a time, at the row's own next position. All that a call changes are tensors whose
    addresses and shapes stay, so that calls can be replayed as a CUDA graph; an entry that leaves its window without
    being admitted is therefore hidden here, not moved. ``keys_pre_rope`` is as of an admitted layer.
    """

    def __init__(
        self, index: int, parts: Sequence[RaggedLayer], room: int, keys_pre_rope: dict[int, torch.Tensor] | None = None
    ):
        used = max(part.used for part in parts)

        def joined(name: str, empty: Any = 0) -> torch.Tensor:
            held = [getattr(part, name)[:, :, : part.used] for part in parts]
            after = [(0, 0) * (x.dim() - 3) + (0, used + room - x.shape[2]) for x in held]
            return torch.cat([pad(x, width, value=empty) for x, width in zip(held, after, strict=True)])

        seen, indexes = max(part.seen for part in parts), [x for part in parts if (x := part.block_index) is not None]
        together = blocks.joined(indexes, used + room + 1) if indexes else None
        super().__init__(joined("keys"), joined("values"), joined("positions", EMPTY), seen, together)
        self.index, self.keys_pre_rope = index, keys_pre_rope
        self._admitted = joined("admitted", False)
        self._windows = torch.cat([part.windows for part in parts])
        self._next = torch.cat([torch.full_like(part.windows, part.seen) for part in parts])
        self._slot = torch.tensor([used], device=self.device)
        self._policies = alike([policy for part in parts for policy in part.policies], self.device)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Append ``[batch, kv_heads, 1, head_dim]``; returns all keys and values."""
        self._keys.index_copy_(2, self._slot, key_states)
        self._values.index_copy_(2, self._slot, value_states)
        self.positions.index_copy_(2, self._slot, self._next.expand(-1, key_states.shape[1], -1))
        self._admitted.index_copy_(2, self._slot, self._decided(key_states))
        self._slot.add_(1)
        self._next.add_(1)
        keys = self.keys
        keys.kvrepro_layer = self
        return keys, self.values

    def _decided(self, keys: torch.Tensor) -> torch.Tensor:
        decided = torch.ones(keys.shape[:3], dtype=torch.bool, device=self.device)
        if self._policies:
            before = self.keys_pre_rope.pop(self.index)
            for policy, rows in self._policies:
                gates = policy.gate(self.index, before[rows], keys[rows], self._next[rows])
                decided.index_copy_(0, rows, gates >= policy.threshold)
        return decided

    def seen_by(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the token that was appended last sees, and positions; see :meth:`RaggedLayer.seen_by`."""
        return self.held()[:, :, None], self.positions

    @property
    def newest(self) -> torch.Tensor:
        """Position of the token that each row saw last, ``[batch, 1, 1]``."""
        return self._next - 1

    def held(self) -> torch.Tensor:
        """Which slots hold an entry that the next token may see: what has left its window unadmitted does not."""
        return self.held_at(self.newest)

    def held_at(self, newest: torch.Tensor) -> torch.Tensor:
        """What was held after the tokens at ``newest`` ``[batch, 1, 1]``, where nothing was dropped since."""
        age = newest - self.positions
        return (self.positions != EMPTY) & (age >= 0) & ((age < self._windows) | self._admitted)

    def drop(self, rows: torch.Tensor, gone: torch.Tensor) -> None:
        """Give up entries of some rows, ``gone`` ``[rows, kv_heads, slots]`` bool; their slots stay empty."""
        self.positions[rows] = self.positions[rows].masked_fill(gone, EMPTY)


def join(
    lm: LoadedModel, caches: Sequence[Any], room: int, keys_pre_rope: dict[int, torch.Tensor] | None = None
) -> DynamicCache:
    """One cache with the rows of ``caches``, in their order; these are not changed."""
    g, joined = lm.geometry, DynamicCache(config=lm.model.config)
    for i in g.attention_layers:
        joined.layers[i] = JoinedLayer(i, [cache.layers[i] for cache in caches], room, keys_pre_rope)
    for i in g.gdn_layers:
        joined.layers[i] = repeated([cache.layers[i] for cache in caches], 1)
    return joined
