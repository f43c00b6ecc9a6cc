"""From an experiment's methods in the config to arms: each combination at every kept fraction or setting."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvrepro.cache.admitted import Policy
from kvrepro.errors import InputError, unknown
from kvrepro.methods import allocation
from kvrepro.methods.admission.base import Admission
from kvrepro.methods.bounding.base import Bounding
from kvrepro.methods.composition import FAMILIES, parts_of, running, settings_of
from kvrepro.methods.eviction.base import Eviction
from kvrepro.methods.selection.base import Selection
from kvrepro.models.loading import LoadedModel
from kvrepro.results import REFERENCES

KEYS = (*FAMILIES, "allocation", "benchmarks", "kept", "over")  #: what a method of the config may say


@dataclass(frozen=True)
class Arm:
    """A combination of methods as the rows name it: at most one before the write, one when reading, one after the
    prefill, one while the cache grows.

    ``kept`` is the kept fraction, None where no method of the arm takes one. ``allocation`` overrides the rule of the
    eviction method's paper.
    """

    name: str
    admission: Admission | None = None
    selection: Selection | None = None
    eviction: Eviction | None = None
    bounding: Bounding | None = None
    kept: float | None = None
    allocation: str | None = None

    @property
    def parts(self) -> dict[str, Admission | Selection | Eviction | Bounding]:
        """The methods by family."""
        return {family: part for family in FAMILIES if (part := getattr(self, family)) is not None}

    @property
    def rule(self) -> str:
        """Allocation in use, of an arm with an eviction method."""
        return self.allocation or self.eviction.allocation

    @property
    def whole(self) -> bool:
        """Whether everything is held and read, so that answers must be those of the dense model."""
        return self.kept == 1.0 and self.selection is None and self.bounding is None

    def options(self) -> str:
        """The methods with their options as JSON, without paths of artefacts; one outside the families by its class."""
        said = {
            family: {"method": getattr(part, "name", type(part).__name__)}
            | {k: v for k, v in asdict(part).items() if k not in part.artifacts}
            for family, part in self.parts.items()
        }
        return json.dumps(said | ({"allocation": self.rule} if self.eviction else {}), sort_keys=True)


def arms(
    methods: Mapping[str, Mapping[str, Any]],
    kept: Sequence[float],
    where: str,
    lm: LoadedModel | None = None,
    artifacts: Mapping[str, str] | None = None,
) -> list[Arm]:
    """Arms of the methods of an experiment: name -> what it combines, as config/README.md says.

    A method is named by the families it combines (:data:`FAMILIES`), each the name of a method or a mapping of
    ``method`` and its options. An arm is made for each fraction of ``kept``, or of the method's own key,
    where a part of it takes one, and for each combination of settings under ``over``; its name then ends in
    ``@tau=0.1``. ``artifacts`` gives the path of each artefact by field name; without ``lm`` it is not read (a config
    is being checked). Raises InputError for an unknown name, option or combination, and for an artefact made for
    another model. Parts that are alike are one object, so that what they load is loaded once and their rows are
    computed together.
    """
    made, alike = [], {}
    for name, said in methods.items():
        at = f"{where}.{name}"
        for key in said:
            if key not in KEYS:
                raise unknown("key", key, KEYS, at)
        for suffix, parts in settings_of(said, at):
            built = {}
            for family, options in parts.items():
                if (key := (family, json.dumps(options, sort_keys=True))) not in alike:
                    method = options.pop("method")
                    alike[key] = FAMILIES[family].build(method, options, f"{at}.{family}", artifacts)
                    if lm is not None:
                        alike[key].prepare(lm)
                built[family] = alike[key]
            made += _at_fractions(f"{name}{suffix}", built, said, kept, at)
    return made


def _at_fractions(name: str, parts: dict[str, Any], said: Mapping[str, Any], kept: Sequence[float], where: str):
    rule = said.get("allocation")
    if rule is not None and "eviction" not in parts:
        raise InputError(f"{where}.allocation: only an eviction method has an allocation; remove it.")
    if "eviction" in parts and (used := rule or parts["eviction"].allocation) not in allocation.RULES:
        raise unknown("allocation", used, allocation.RULES, f"{where}.allocation")
    takes = "eviction" in parts or ("admission" in parts and parts["admission"].by_fraction)
    if "kept" in said and not takes:
        raise InputError(f"{where}.kept: no part of this method takes a kept fraction; remove it.")
    return [Arm(name, **parts, kept=k, allocation=rule) for k in (said.get("kept", kept) if takes else [None])]


def policy_of(arm: Arm, n: int, answer: int) -> Policy:
    """The admission policy of an arm for a context of ``n`` tokens and the most tokens that follow it: kept fractions
    are of the context, and a window must end before the answer does."""
    return arm.admission.policy(arm.kept, n if arm.admission.by_fraction else n + answer)


def check_budgets(arms: Sequence[Arm], shortest: int, protected: int, answer: int = 0) -> None:
    """Raise InputError, before a model runs, when an arm has no budget in a context of ``shortest`` tokens that an
    answer of ``answer`` tokens may follow."""
    for arm in arms:
        if arm.admission is not None:
            policy_of(arm, shortest, answer)
        if arm.eviction is not None:
            allocation.per_head_budget(arm.kept, shortest, protected)
            if arm.eviction.query_window >= shortest - protected:
                raise InputError(f"{arm.name}: a window of {arm.eviction.query_window} tokens covers all; lower it.")


def described(
    methods: Mapping[str, Mapping[str, Any]],
    kept: Sequence[float],
    where: str,
    sizes: Mapping[str, tuple[int, int]],
) -> dict[str, dict[str, list[str]]]:
    """Per method of an experiment the ``files`` that define its parts and the ``artifacts`` that it needs.

    Raises InputError for whatever :func:`arms` refuses, for a name that rows of the unpruned model have, and for a kept
    fraction that leaves nothing of the shortest contexts of a benchmark; ``sizes`` are, by its name, their tokens and
    those that an answer may have.
    """
    if taken := [name for name in REFERENCES if name in methods]:
        raise InputError(f"{where}.{taken[0]}: rows of the unpruned model have this name; give the method another one.")
    made_later = {field: "" for family in FAMILIES.values() for n in family.names() for field in family.artifacts(n)}
    arms(methods, kept, where, artifacts=made_later)
    for benchmark, (tokens, answer) in sizes.items():
        try:
            made = arms(running(methods, benchmark), kept, where, artifacts=made_later)
            check_budgets(made, tokens, protected=0, answer=answer)
        except InputError as error:
            raise InputError(f"{where} on {benchmark}, whose contexts may have {tokens} tokens: {error}") from error
    found = {}
    for name, said in methods.items():
        parts = [FAMILIES[family].find(part["method"]) for family, part in parts_of(said, where).items()]
        needed = sorted({field for part in parts for field in part.artifacts})
        found[name] = {"files": [inspect.getfile(part) for part in parts], "artifacts": needed}
    return found
