"""What a method of the config combines, read without importing a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from kvrepro.errors import InputError, unknown
from kvrepro.methods import admission, bounding, eviction, selection

FAMILIES = {family.FAMILY.name: family.FAMILY for family in (admission, selection, eviction, bounding)}


def parts_of(said: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The parts of a method of the config by family: the options of each, with its name under ``method``."""
    parts = {}
    for family in FAMILIES:
        if family in said:
            part = {"method": said[family]} if isinstance(said[family], str) else dict(said[family])
            if "method" not in part:
                raise InputError(f"{where}.{family}: the key 'method' is missing; name the {family} method.")
            parts[family] = part
    if not parts:
        raise InputError(f"{where}: names no method; give {', '.join(FAMILIES)}, or several of them.")
    if "admission" in parts and "eviction" in parts:
        raise InputError(
            f"{where}: eviction scores the entries of a whole prefill, which admission leaves out; combine either of "
            "them with a selection."
        )
    if "bounding" in parts and "eviction" in parts:
        raise InputError(
            f"{where}: eviction scores the entries of a whole prefill, which bounding never holds; leave one of "
            "them out."
        )
    return parts


def running(methods: Mapping[str, Mapping[str, Any]], benchmark: str) -> dict[str, Mapping[str, Any]]:
    """The methods of an experiment that run a benchmark: those that name it, or none."""
    return {name: said for name, said in methods.items() if benchmark in said.get("benchmarks", [benchmark])}


def settings_of(said: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """The parts of a method with each combination of the settings it goes ``over``, and how that is called."""
    swept = []
    for family, options in said.get("over", {}).items():
        if family not in parts_of(said, where):
            raise unknown("part", family, parts_of(said, where), f"{where}.over")
        for option, values in options.items():
            if not isinstance(values, list) or not values:
                raise InputError(f"{where}.over.{family}.{option}: give a list of at least one value.")
            swept.append([(family, option, value) for value in values])
    for chosen in product(*swept):
        parts = parts_of(said, where)
        for family, option, value in chosen:
            parts[family][option] = value
        yield "".join(f"@{option}={value}" for _, option, value in chosen), parts
