"""What ``config/models.yaml`` says of each model."""

from __future__ import annotations

from pathlib import Path

from kvrepro import yamlfile
from kvrepro.errors import InputError, unknown

REGISTRY = Path("config/models.yaml")


def entries(path: Path = REGISTRY) -> dict[str, dict]:
    """All models of the registry by name. Relative ``path`` entries are taken from the working directory."""
    if not path.exists():
        raise InputError(f"{path} is missing; run from the root of the repository.")
    models = yamlfile.mapping(path, "see config/README.md").get("models")
    if not isinstance(models, dict):
        raise InputError(f"{path}: the key models is missing; it maps the name of each model to its entry.")
    return models


def entry(name: str, path: Path = REGISTRY) -> dict:
    """One model's entry; InputError with the nearest match when the name is unknown."""
    models = entries(path)
    if name not in models:
        raise unknown("model", name, models, str(path))
    return models[name]
