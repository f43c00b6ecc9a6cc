"""The identity of a sequence of token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def sha256_tokens(ids: Iterable[int]) -> str:
    """SHA-256 of token ids, written as little-endian 32-bit integers (GateSight Appendix A's context identity)."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()
