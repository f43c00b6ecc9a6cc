"""Recurrent states of Gated DeltaNet cache layers: copies whose rows are those of one or more layers, repeated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch


def repeated(layers: Sequence[Any], rows: int) -> Any:
    """A new cache layer with the rows of all ``layers``, each ``rows`` times in a row; the layers are not changed.

    ``layers`` are linear-attention layers of transformers caches, in the same state of use; their states are tensors
    ``[batch, ...]`` in dictionaries.
    """

    def join(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([value.repeat_interleave(rows, 0) for value in values])

    return _with_states(layers, join)


def chosen_rows(layer: Any, rows: torch.Tensor) -> Any:
    """A new cache layer with the ``rows`` of ``layer``, numbers, each as often as it is named."""
    return _with_states([layer], lambda values: values[0].index_select(0, rows))


def _with_states(layers: Sequence[Any], join: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    """A copy of the first of ``layers`` whose states are what ``join`` makes of those of all."""
    joined = copy.copy(layers[0])
    for name, value in vars(layers[0]).items():
        if isinstance(value, dict):
            states = {key: [getattr(layer, name)[key] for layer in layers] for key in value}
            made = {k: join(each) if isinstance(each[0], torch.Tensor) else each[0] for k, each in states.items()}
            setattr(joined, name, made)
    return joined
