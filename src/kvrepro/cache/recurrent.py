"""Recurrent states of Gated DeltaNet cache layers: copies whose rows are those of one or more layers, repeated."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch


def repeated(layers: Sequence[Any], rows: int) -> Any:
    """A new cache layer with the rows of all ``layers``, each ``rows`` times in a row; the layers are not changed.

    ``layers`` are linear-attention layers of transformers caches, in the same state of use; their states are tensors
    ``[batch, ...]`` in dictionaries.
    """
    joined = copy.copy(layers[0])
    for name, value in vars(layers[0]).items():
        if isinstance(value, dict):
            setattr(joined, name, {key: _join(layers, name, key, rows) for key in value})
    return joined


def _join(layers: Sequence[Any], name: str, key: Any, rows: int) -> Any:
    values = [getattr(layer, name)[key] for layer in layers]
    if not isinstance(values[0], torch.Tensor):
        return values[0]
    return torch.cat([value.repeat_interleave(rows, 0) for value in values])
