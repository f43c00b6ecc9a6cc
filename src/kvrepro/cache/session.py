"""Caches of one context, one a row of a batch, that answer any number of questions from the same state."""

from __future__ import annotations

from typing import Any

from kvrepro.cache.bounded import Bounds
from kvrepro.cache.recurrent import repeated
from kvrepro.models.geometry import Geometry


class Session:
    """A cache of ragged or admitted layers after its context, with its bounds if it has any; every question starts
    from there."""

    def __init__(self, cache: Any, geometry: Geometry, bounds: Bounds | None = None):
        self.cache, self.bounds = cache, bounds
        self.attention = [cache.layers[i] for i in geometry.attention_layers]
        self._recurrent = {i: repeated([cache.layers[i]], 1) for i in geometry.gdn_layers}
        for layer in self.attention:
            layer.mark()
        if bounds is not None:
            bounds.mark()

    def rewind(self) -> None:
        """Return to the state after the context, as if nothing had been asked."""
        for layer in self.attention:
            layer.rewind()
        if self.bounds is not None:
            self.bounds.rewind()
        for i, saved in self._recurrent.items():
            self.cache.layers[i] = repeated([saved], 1)
