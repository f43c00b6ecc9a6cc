"""Predictors trained with one corpus left out, and the file they are kept in (GateSight Appendix C)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvrepro import tensorfile
from kvrepro.estimators.mlp import Heads

KIND = "folds"
REMEDY = "run the workflow to train the held-out predictors"

#: corpus left out -> name of the predictor -> the predictor
Folds = dict[str, dict[str, Heads]]


def save(path: str | Path, folds: Folds, meta: Mapping[str, Any]) -> None:
    """Write all folds; ``meta`` holds model, fingerprint, geometry (as a dict) and recipe."""
    tensors = {
        f"{corpus}/{name}/{field}": x
        for corpus, predictors in folds.items()
        for name, heads in predictors.items()
        for field, x in vars(heads).items()
        if x is not None
    }
    tensorfile.write(path, tensors, dict(meta) | {"kind": KIND, "tensors": sorted(tensors)})


def load(path: str | Path, fingerprint: str, geometry: dict[str, Any]) -> tuple[Folds, dict[str, Any]]:
    """All folds of a model and the ``meta`` they were saved with.

    InputError when the file is missing, corrupt or another model's.
    """
    file = tensorfile.TensorFile(path, KIND, REMEDY)
    file.belongs_to(fingerprint, geometry)
    parts: dict[str, dict[str, dict[str, Any]]] = {}
    for key in file.meta["tensors"]:
        corpus, name, field = key.rsplit("/", 2)
        parts.setdefault(corpus, {}).setdefault(name, {})[field] = file.read(key)
    empty = dict.fromkeys(Heads.__dataclass_fields__)
    folds = {c: {name: Heads(**empty | fields) for name, fields in named.items()} for c, named in parts.items()}
    return folds, file.meta
