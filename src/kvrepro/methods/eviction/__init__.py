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


def artifacts(name: str) -> tuple[str, ...]:
    """Fields of a method that hold the path of an artefact, which the workflow makes for the model."""
    return discovery.find(sys.modules[__name__], Eviction, name, "eviction").artifacts


def build(
    name: str,
    options: dict[str, Any] | None = None,
    where: str = "eviction",
    artifact_paths: dict[str, str] | None = None,
) -> Eviction:
    """An eviction method by name; InputError when the name or an option is unknown.

    ``artifact_paths`` gives paths by field name; a method takes those it lists in ``artifacts``.
    """
    method = discovery.find(sys.modules[__name__], Eviction, name, where)
    paths = {k: v for k, v in (artifact_paths or {}).items() if k in method.artifacts}
    return discovery.build(method, (options or {}) | paths, where)
