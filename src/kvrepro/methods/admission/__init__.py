"""Admission: which entries are written beyond the local window (WG-KV §2.2, §3; one file a method)."""

from __future__ import annotations

import sys
from typing import Any

from kvrepro.methods import discovery
from kvrepro.methods.admission.base import Admission

__all__ = ["Admission", "build", "names"]


def names() -> list[str]:
    """Names of all admission methods."""
    return list(discovery.methods(sys.modules[__name__], Admission))


def build(name: str, options: dict[str, Any] | None = None, where: str = "admission") -> Admission:
    """An admission method by name; InputError when the name or an option is unknown."""
    return discovery.build(discovery.find(sys.modules[__name__], Admission, name, where), options or {}, where)
