"""A model's tokenizer, without its weights and what these need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from kvrepro.errors import InputError
from kvrepro.models import registry


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model of ``config/models.yaml``, or of a directory, without its weights."""
    spec = {"path": name} if Path(name).is_dir() else registry.entry(name)
    source = spec.get("path") or spec["hub"]
    try:
        return AutoTokenizer.from_pretrained(source, revision=spec.get("revision", "main"))
    except Exception as error:  # transformers and huggingface_hub raise many kinds here
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"tokenizer of {name!r} cannot be loaded from {source}: {reason}; restore it.") from error
