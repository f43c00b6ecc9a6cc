"""What an estimator reads of a context entry: native GDN signals of a window of layers, and the entry's age (Eq. 3).

All features of all layers are columns of one *flat* matrix ``[n, gdn_layers * gdn_heads * 3 + 3 + 1]``: signals, ages,
and a zero. An attention layer's features are a choice of its columns; a layer with fewer of them than the widest is
padded with the zero column, so that all layers can run as one batch.
"""

from __future__ import annotations

import torch

from kvrepro.models.capture import SIGNALS
from kvrepro.models.geometry import Geometry

AGES = 3


def window_layers(geometry: Geometry, layer: int, window: int) -> list[int]:
    """Indices into ``geometry.gdn_layers`` of the up to ``window`` GDN layers that precede attention layer ``layer``
    (the layer's number in the model)."""
    before = [k for k, i in enumerate(geometry.gdn_layers) if i < layer]
    return before[-window:] if window else []


def ages(n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Age features of entries i = 1..n: i/n, (n-i)/n, log(1+n-i)/log(1+n); ``[n, 3]`` float32."""
    i = torch.arange(1, n + 1, device=device, dtype=torch.float64)
    rest = n - i
    log_n = torch.log1p(torch.tensor(float(n), dtype=torch.float64, device=device))
    return torch.stack([i / n, rest / n, torch.log1p(rest) / log_n], 1).float()


def flat(signals: torch.Tensor) -> torch.Tensor:
    """The flat matrix of a context; signals ``[gdn_layers, n, gdn_heads, 3]``."""
    n = signals.shape[1]
    zero = signals.new_zeros(n, 1)
    return torch.cat([signals.transpose(0, 1).flatten(1), ages(n, signals.device), zero], 1)


def columns(geometry: Geometry, window: int) -> torch.Tensor:
    """Columns of the flat matrix that each attention layer reads: ``[attention_layers, widest]`` int64, padded with the
    zero column. ``window`` 0 leaves the ages alone (the age-only control)."""
    per_layer = geometry.gdn_heads * SIGNALS
    first_age = len(geometry.gdn_layers) * per_layer
    rows = []
    for layer in geometry.attention_layers:
        read = [c for k in window_layers(geometry, layer, window) for c in range(k * per_layer, (k + 1) * per_layer)]
        rows.append([*read, *range(first_age, first_age + AGES)])
    widest = max(map(len, rows))
    return torch.tensor([row + [first_age + AGES] * (widest - len(row)) for row in rows])


def widths(geometry: Geometry, window: int) -> list[int]:
    """How many features each attention layer has, padding not counted."""
    return [
        len(window_layers(geometry, layer, window)) * geometry.gdn_heads * SIGNALS + AGES
        for layer in geometry.attention_layers
    ]


def features(signals: torch.Tensor, geometry: Geometry, layer: int, window: int) -> torch.Tensor:
    """Features ``[n, F]`` of attention layer ``layer`` (its number in the model), exactly Eq. 3, not standardised.

    signals ``[gdn_layers, n, gdn_heads, 3]``; F = 3 * gdn_heads * (layers in the window) + 3.
    """
    number = geometry.attention_layers.index(layer)
    return flat(signals)[:, columns(geometry, window)[number, : widths(geometry, window)[number]]]
