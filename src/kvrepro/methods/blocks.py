"""KV heads in groups whose temporaries fit into a bounded part of the memory, so that long contexts can be scored."""

from __future__ import annotations

from collections.abc import Iterator

import torch

ELEMENTS = 2**28  #: float32 temporaries of a group, 1 GiB


def head_blocks(keys: torch.Tensor, per_entry: int) -> Iterator[slice]:
    """Slices of the KV heads of ``keys`` ``[kv_heads, n, head_dim]``; all at once where the memory allows.

    ``per_entry`` is how many float32 temporaries an entry of one head needs.
    """
    heads, n = keys.shape[:2]
    step = max(1, ELEMENTS // max(1, n * per_entry))
    return (slice(first, min(first + step, heads)) for first in range(0, heads, step))
