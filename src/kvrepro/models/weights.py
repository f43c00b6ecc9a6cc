"""Whether the weight files of a local model are all there and whole, told without reading them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open


def fault(directory: Path) -> str | None:
    """What is wrong with the safetensors files of a model, None where nothing is: headers and sizes are looked at."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return "holds no weights"
    index = directory / "model.safetensors.index.json"
    try:
        named = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()
    except (ValueError, KeyError, AttributeError):
        return f"holds weights whose {index.name} is corrupt"
    if missing := sorted(named - {file.name for file in files}):
        return f"lacks the weights {', '.join(missing)}"
    for file in files:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            return f"holds truncated or corrupt weights in {file.name} ({error})"
    return None
