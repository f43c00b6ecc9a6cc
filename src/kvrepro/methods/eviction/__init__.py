"""Eviction: which entries of a finished prefill to keep (GateSight §4; one file a method)."""

from __future__ import annotations

import sys
from typing import Any

from kvrepro.methods import discovery
from kvrepro.methods.eviction.base import Eviction

__all__ = ["Eviction", "build", "names"]


def names() -> list[str]:
    """Names of all eviction methods."""
    return list(discovery.methods(sys.modules[__name__], Eviction))


def build(name: str, options: dict[str, Any] | None = None, where: str = "methods.eviction") -> Eviction:
    """An eviction method by name; InputError when the name or an option is unknown."""
    return discovery.build(sys.modules[__name__], Eviction, name, options or {}, where)
