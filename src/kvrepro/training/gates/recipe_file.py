"""Files of ``config/write_gates``: what they say of a model's gates and heads. The config reads them without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvrepro import yamlfile
from kvrepro.errors import InputError

COUNTS = {"window", "steps", "batch_tokens", "together", "validation"}  #: keys that count something
LONGEST = 200  #: characters of the name of a file


def gate_settings(path: str | Path, over: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[float]]:
    """The recipe of write gates, with the keys of ``over`` in place of the file's, and its lambdas, each once."""
    settings = _read(path) | dict(over or {})
    settings.pop("head_profile", None)
    if not (lambdas := settings.pop("lambdas", [])):
        raise InputError(f"{path}: the key lambdas is missing or empty; give at least one trade-off.")
    for key in COUNTS & set(settings):
        if type(settings[key]) is not int or settings[key] < 1:
            raise InputError(f"{path}: {key} is {settings[key]!r}; give an integer of at least 1.")
    return settings, list(dict.fromkeys(map(float, lambdas)))


def trained_together(lambdas: Sequence[float], together: int) -> dict[str, list[float]]:
    """Lambdas in groups that are trained as one, by the names of their files."""
    groups = [list(lambdas[i : i + together]) for i in range(0, len(lambdas), together)]
    named = {"_".join(f"{trade_off:g}" for trade_off in group): group for group in groups}
    if max(map(len, named)) > LONGEST:
        raise InputError(f"write_gates.recipe.together: {together} lambdas are too many for a file's name; lower it.")
    return named


def head_settings(path: str | Path, over: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How DuoAttention's heads are identified, with the keys of ``over`` in place of the file's."""
    if (given := _read(path).get("head_profile")) is None:
        raise InputError(f"{path}: the key head_profile is missing; add it to identify heads.")
    return given | dict(over or {})


def _read(path: str | Path) -> dict[str, Any]:
    if not Path(path).exists():
        raise InputError(f"{path} is missing; write a recipe for this model after those beside it.")
    return yamlfile.mapping(path, "see the recipes beside it")
