"""The identity of a model's weights."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint(directory: Path) -> str:
    """First 16 hex digits of a SHA-256 over config and weight files: artefacts trained for a model carry it."""
    digest = hashlib.sha256()
    for file in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
        digest.update(file.name.encode())
        with file.open("rb") as f:
            digest.update(hashlib.file_digest(f, "sha256").digest())
    return digest.hexdigest()[:16]
