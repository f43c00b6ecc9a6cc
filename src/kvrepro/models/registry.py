"""What ``config/models.yaml`` says of each model."""

from __future__ import annotations

from pathlib import Path

import yaml

from kvrepro.errors import InputError, unknown

REGISTRY = Path("config/models.yaml")


def entries(path: Path = REGISTRY) -> dict[str, dict]:
    """All models of the registry by name. Relative ``path`` entries are taken from the working directory."""
    if not path.exists():
        raise InputError(f"{path} is missing; run from the root of the repository.")
    return yaml.safe_load(path.read_text())["models"]


def entry(name: str, path: Path = REGISTRY) -> dict:
    """One model's entry; InputError with the nearest match when the name is unknown."""
    models = entries(path)
    if name not in models:
        raise unknown("model", name, models, str(path))
    return models[name]
