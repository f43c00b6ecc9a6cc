"""Finding methods by name: every module of a family's package is imported and its classes are listed."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from kvrepro.errors import InputError, unknown


@dataclasses.dataclass(frozen=True)
class Family:
    """A package of methods, one file a method, whose module ``base`` defines the class ``base`` that all derive from.

    Nothing is imported before a method is asked for, so that the names of families cost nothing.
    """

    package: str
    base: str

    @property
    def name(self) -> str:
        """admission, selection, eviction or bounding."""
        return self.package.rsplit(".", 1)[-1]

    def methods(self) -> dict[str, type]:
        """All methods by name: the subclasses of the base that carry a ``name``."""
        found: dict[str, type] = {}
        for cls in self._classes("name"):
            if (other := found.setdefault(cls.name, cls)).__module__ != cls.__module__:
                files = " and ".join(sorted([other.__module__, cls.__module__]))
                raise InputError(f"{self.name} method {cls.name!r} is defined in {files}; rename one of them.")
        return dict(sorted(found.items()))

    def adapters(self) -> dict[str, type]:
        """What brings in methods of another package, by the ``prefix`` that their names begin with, before a colon:
        classes whose ``named(rest, where)`` gives a method."""
        return {cls.prefix: cls for cls in self._classes("prefix")}

    def _classes(self, attribute: str) -> Iterator[type]:
        """Subclasses of the base that define an attribute themselves; what an adapter has made is not among them."""
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        todo = [getattr(importlib.import_module(f"{self.package}.base"), self.base)]
        while todo:
            cls = todo.pop()
            todo += [] if "prefix" in vars(cls) else cls.__subclasses__()
            if attribute in vars(cls):
                yield cls

    def names(self) -> list[str]:
        """Names of all methods."""
        return list(self.methods())

    def find(self, name: str, where: str | None = None) -> type:
        """A method's class by name; InputError names the key ``where`` and the nearest match."""
        prefix, _, rest = name.partition(":")
        if rest and prefix in (adapters := self.adapters()):
            return adapters[prefix].named(rest, where or self.name)
        known = self.methods()
        if name not in known:
            raise unknown(f"{self.name} method", name, known, where or self.name)
        return known[name]

    def artifacts(self, name: str) -> tuple[str, ...]:
        """Fields of a method that hold the path of an artefact, which the workflow makes for the model."""
        return self.find(name).artifacts

    def build(
        self,
        name: str,
        options: Mapping[str, Any] | None = None,
        where: str | None = None,
        artifact_paths: Mapping[str, str] | None = None,
    ) -> Any:
        """A method with its options checked; InputError names what is unknown, and the nearest match.

        ``artifact_paths`` gives paths by field name; a method takes those it lists in ``artifacts``.
        """
        method, where = self.find(name, where), where or self.name
        fields = {f.name: f for f in dataclasses.fields(method) if f.name not in method.artifacts}
        for key, value in (options or {}).items():
            if key not in fields:
                raise unknown("option", key, fields, where)
            if not _fits(value, fields[key].type):
                raise InputError(f"{where}.{key}: {value!r} must be of type {_called(fields[key].type)}.")
        paths = {k: v for k, v in (artifact_paths or {}).items() if k in method.artifacts}
        try:
            return method(**{**(options or {}), **paths})
        except TypeError as error:
            raise InputError(
                f"{where}: {error}; give every option without a default, define every abstract method."
            ) from error


PLAIN = {"bool": (bool,), "int": (int,), "float": (float, int), "str": (str,), "None": (type(None),)}


def _called(kind: Any) -> str:
    """The annotation of a field in words, whether it is kept as text or not."""
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of the config is of a field's type, as far as that is plain."""
    named = _called(kind).split(" | ")
    if any(name not in PLAIN for name in named):
        return True
    if isinstance(value, bool):
        return "bool" in named
    return any(isinstance(value, PLAIN[name]) for name in named)
