"""Finding methods by name: every module of a family's package is imported and its classes are listed."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from types import ModuleType
from typing import Any

from kvrepro.errors import InputError, unknown


def methods(family: ModuleType, base: type) -> dict[str, type]:
    """All methods of a family by name: the subclasses of ``base`` that carry a ``name``."""
    for module in pkgutil.iter_modules(family.__path__):
        importlib.import_module(f"{family.__name__}.{module.name}")
    found, todo = {}, [base]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if "name" in vars(cls):
            found[cls.name] = cls
    return dict(sorted(found.items()))


def find(family: ModuleType, base: type, name: str, where: str) -> type:
    """A method's class by name; InputError names the key ``where`` and the nearest match."""
    known = methods(family, base)
    if name not in known:
        raise unknown(f"{family.__name__.rsplit('.', 1)[-1]} method", name, known, where)
    return known[name]


def build(method: type, options: dict[str, Any], where: str) -> Any:
    """A method with its options checked; InputError names the option and the nearest match."""
    fields = {f.name for f in dataclasses.fields(method)}
    for key in options:
        if key not in fields:
            raise unknown("option", key, fields, where)
    try:
        return method(**options)
    except TypeError as error:
        raise InputError(f"{where}: {error}; give every option that has no default.") from error
