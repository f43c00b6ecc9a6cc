"""A cache layer whose rows and KV heads hold different entries, each with its logical position.

Used in place of transformers' ``DynamicLayer``; attention over it goes through :mod:`kvrepro.models.attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from kvrepro.cache.blocks import Blocks
from kvrepro.models.attention import grouped_attention

EMPTY = -1  #: position of a slot that holds no entry
CHUNK = 64  #: slots added whenever a layer is full
UNLIMITED = 2**62  #: a window that no context leaves

#: ``narrow(query, keys, positions)`` says which entries one decoding token reads: query ``[batch, query_heads,
#: head_dim]``, keys ``[batch, kv_heads, entries, head_dim]``, positions ``[batch, kv_heads, entries]``, EMPTY where
#: there is nothing to read; returns ``[batch, kv_heads, entries]`` bool.
Narrow = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class RaggedLayer(CacheLayerMixin):
    """Entries of ``batch`` rows x ``kv_heads`` heads, packed to the front, padded to the longest.

    ``keys``, ``values``: ``[batch, kv_heads, slots, head_dim]``; ``positions``: ``[batch, kv_heads, slots]``, EMPTY
    where a slot is padding. ``seen`` counts the tokens that passed, so positions continue after an eviction. ``narrow``
    is what a selection method reads when a single token decodes; without it everything held is read. ``watch`` is shown
    the queries of every forward, ``[batch, query_heads, t, head_dim]``. ``block_index`` is that of a sparse-attention
    model, whose heads then all hold the same entries.
    """

    is_sliding = False

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
        seen: int,
        block_index: Blocks | None = None,
    ):
        super().__init__()
        self._keys, self._values, self.positions = keys, values, positions
        self.used = keys.shape[2]
        self.seen = seen
        self.is_initialized = True
        self.device = keys.device
        self._mark = (self.used, seen)
        self.narrow: Narrow | None = None
        self.watch: Callable[[torch.Tensor], None] | None = None
        self.block_index = block_index

    @property
    def indexer_position_ids(self) -> None:
        """Positions of all entries, which transformers' indexer keeps in its cache; :attr:`block_index` needs none."""
        return None

    @indexer_position_ids.setter
    def indexer_position_ids(self, value):
        pass

    @property
    def policies(self) -> list[Any]:
        """Admission policy of each row; None where everything is admitted, as here."""
        return [None] * len(self.positions)

    @property
    def admitted(self) -> torch.Tensor:
        """Which slots are seen beyond the window, ``[batch, kv_heads, slots]`` bool: here all of them."""
        return torch.ones_like(self.positions, dtype=torch.bool)

    @property
    def windows(self) -> torch.Tensor:
        """Tokens of each row's local window, ``[batch, 1, 1]``: here no limit."""
        return torch.full((len(self.positions), 1, 1), UNLIMITED, device=self.device)

    @property
    def keys(self) -> torch.Tensor:
        """Keys of the slots in use, padding included."""
        return self._keys[:, :, : self.used]

    @keys.setter
    def keys(self, value):
        self._keys = value

    @property
    def values(self) -> torch.Tensor:
        """Values of the slots in use, padding included."""
        return self._values[:, :, : self.used]

    @values.setter
    def values(self, value):
        self._values = value

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: a ragged layer is made full."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Append ``[batch, kv_heads, t, head_dim]`` to every row and head; returns all keys and values."""
        t = key_states.shape[2]
        if self.used + t > self._keys.shape[2]:
            self._grow(self.used + t - self._keys.shape[2] + CHUNK)
        new = slice(self.used, self.used + t)
        self._keys[:, :, new], self._values[:, :, new] = key_states, value_states
        self.positions[:, :, new] = torch.arange(self.seen, self.seen + t, device=self.device)
        self.used += t
        self.seen += t
        keys = self.keys
        keys.kvrepro_layer = self
        return keys, self.values

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of the last tokens, ``[batch, query_heads, t, head_dim]``, over what :meth:`update` handed out."""
        visible = self.visible(query, keys)
        return grouped_attention(query, keys, values, lambda rows, seen: visible[:, :, rows, :seen], scaling)

    def visible(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Which entries the last tokens see: ``[batch, kv_heads or 1, t, entries]`` bool, of their queries ``[batch,
        query_heads, t, head_dim]`` and the keys that :meth:`update` handed out."""
        if self.watch is not None:
            self.watch(query)
        seen, positions = self.seen_by(query.shape[2])
        if self.narrow is None or query.shape[2] > 1:
            return seen
        return self.narrow(query[:, :, 0], keys, positions.masked_fill(~seen[:, :, 0], EMPTY))[:, :, None]

    def seen_by(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the last ``t`` tokens could see, ``[batch, kv_heads or 1, t, entries]`` bool, and the positions of the
        entries, ``[batch, kv_heads, entries]``."""
        positions = self.positions[:, :, : self.used]
        queries = torch.arange(self.seen - t, self.seen, device=self.device)[:, None]
        return ((positions != EMPTY)[:, :, None]) & (positions[:, :, None] <= queries), positions

    def numbers(self) -> torch.Tensor:
        """The number of each slot's entry among those of its row, ``[batch, slots]``, -1 where it is empty; of a layer
        whose heads hold the same entries."""
        held = self.held()[:, 0]
        return torch.where(held, held.cumsum(-1) - 1, -1)

    @property
    def newest(self) -> torch.Tensor:
        """Position of the token that each row saw last, ``[batch, 1, 1]``."""
        return torch.full((len(self.positions), 1, 1), self.seen - 1, device=self.device)

    def held(self) -> torch.Tensor:
        """Which slots hold an entry: ``[batch, kv_heads, slots]`` bool."""
        return self.positions[:, :, : self.used] != EMPTY

    def entries(self) -> torch.Tensor:
        """Entries held per row and KV head: ``[batch, kv_heads]``."""
        return self.held().sum(-1)

    def appended_positions(self) -> torch.Tensor:
        """Positions of the entries appended since :meth:`mark`: ``[batch, kv_heads, appended]``."""
        return self.positions[:, :, self._mark[0] : self.used]

    def mark(self) -> None:
        """Remember the present content; :meth:`rewind` returns to it (a session asked one more question)."""
        self._mark = (self.used, self.seen)
        if self.block_index is not None:
            self.block_index.mark()

    def rewind(self) -> None:
        """Drop what was appended since :meth:`mark`."""
        used, self.seen = self._mark
        self.positions[:, :, used:] = EMPTY
        self.used = used
        if self.block_index is not None:
            self.block_index.rewind()

    def _grow(self, slots: int) -> None:
        pad = (0, 0, 0, slots)
        self._keys = torch.nn.functional.pad(self._keys, pad)
        self._values = torch.nn.functional.pad(self._values, pad)
        self.positions = torch.nn.functional.pad(self.positions, (0, slots), value=EMPTY)

    def get_seq_length(self) -> int:
        """Tokens seen, which drives the position ids."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Lengths for transformers' mask code, whose mask this layer does not use."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


def entries_held(layers: Sequence[RaggedLayer]) -> torch.Tensor:
    """Entries held: ``[rows, layers, kv_heads]``."""
    return torch.stack([layer.entries() for layer in layers], dim=1)


def bytes_held(layers: Sequence[RaggedLayer]) -> torch.Tensor:
    """Bytes of the keys and values of the entries each row holds, and of their index: ``[rows]``. Padding of a batch is
    not counted, since it is an artefact of decoding several caches together."""
    keys, indexes = layers[0].keys, [layer.block_index.bytes() for layer in layers if layer.block_index is not None]
    return entries_held(layers).flatten(1).sum(1) * 2 * keys.shape[-1] * keys.element_size() + sum(indexes)


def pack(keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, kept: torch.Tensor):
    """Move kept entries to the front of each row and head, in their order, and drop the rest.

    keys, values ``[batch, kv_heads, tokens, head_dim]``; positions and kept ``[batch, kv_heads, tokens]`` (kept bool).
    Returns keys, values, positions with as many slots as the fullest head keeps; free slots hold zeros and EMPTY.
    """
    return packed(keys, values, positions, *packing(kept))


def packed(
    keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, order: torch.Tensor, filled: torch.Tensor
):
    """:func:`pack` where :func:`packing` was asked already."""
    gather = order[..., None].expand(*order.shape, keys.shape[-1])
    moved = [x.gather(2, gather) * filled[..., None].to(x.dtype) for x in (keys, values)]
    return *moved, torch.where(filled, positions.gather(2, order), EMPTY)


def packing(kept: torch.Tensor, slots: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Where kept entries are taken from when they move to the front, in their order, and which slots then hold one:
    both ``[batch, kv_heads, slots]``, as many slots as the fullest head keeps; kept ``[batch, kv_heads, tokens]``. A
    GPU is waited for unless the number of ``slots`` is given."""
    counts = kept.sum(-1)
    if slots is None:
        slots = int(counts.max()) if counts.numel() else 0
    order = kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :slots]
    return order, torch.arange(slots, device=kept.device) < counts[..., None]
