"""From the config's method tables to arms: every method at every kept fraction."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from kvrepro.methods import admission, eviction
from kvrepro.methods.admission import Admission
from kvrepro.methods.allocation import per_head_budget
from kvrepro.methods.eviction import Eviction
from kvrepro.models.loading import LoadedModel


@dataclass(frozen=True)
class Arm:
    """One method at one kept fraction, as the rows name it."""

    name: str
    method: Eviction | Admission
    kept: float
    allocation: str | None = None  # overrides the eviction method's own rule

    @property
    def rule(self) -> str:
        """Allocation in use; empty for an admission method, which has none."""
        return self.allocation or getattr(self.method, "allocation", "")

    def options(self) -> str:
        """The method's options as JSON, without paths of artefacts."""
        paths = getattr(self.method, "artifacts", ())
        options = {k: v for k, v in asdict(self.method).items() if k not in paths}
        return json.dumps(options | ({"allocation": self.rule} if self.rule else {}), sort_keys=True)


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


def check_budgets(arms: list[Arm], shortest: int, protected: int) -> None:
    """Raise InputError, before a model runs, when an arm has no budget in a context of ``shortest`` tokens."""
    for arm in arms:
        if isinstance(arm.method, Admission):
            arm.method.policy(arm.kept, shortest)
        else:
            per_head_budget(arm.kept, shortest, protected)
