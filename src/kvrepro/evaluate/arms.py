"""From the config's method tables to arms: every method at every kept fraction."""

from __future__ import annotations

from typing import Any

from kvrepro.evaluate.protocol import Arm
from kvrepro.methods import admission, eviction
from kvrepro.models.loading import LoadedModel


def eviction_arms(
    table: dict[str, dict[str, Any]], kept: list[float], lm: LoadedModel | None, artifacts: dict[str, str]
) -> list[Arm]:
    """Arms of the config's ``eviction`` table: name of the arm -> options of the method.

    An arm is named after its method unless its options say ``method``; ``allocation`` overrides the method's own rule.
    ``artifacts`` gives the path of each artefact by field name. Raises InputError for an unknown method or option, and
    for an artefact made for another model; without ``lm`` the artefacts are not read (a config is being checked).
    """
    made = []
    for name, given in table.items():
        options = dict(given)
        allocation = options.pop("allocation", None)
        method = eviction.build(options.pop("method", name), options, f"eviction.{name}", artifacts)
        if lm is not None:
            method.prepare(lm)
        made += [Arm(name, method, k, allocation) for k in kept]
    return made


def admission_arms(table: dict[str, dict[str, Any]], kept: list[float]) -> list[Arm]:
    """Arms of the config's ``admission`` table, named like :func:`eviction_arms`."""
    made = []
    for name, given in table.items():
        options = dict(given)
        method = admission.build(options.pop("method", name), options, f"admission.{name}")
        made += [Arm(name, method, k) for k in kept]
    return made
