"""The settings of a tier: merged from its files, validated, and checked for sense before any job starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from kvrepro.benchmarks.ruler import TASKS
from kvrepro.benchmarks.ruler.sources import OFFICIAL_FILES
from kvrepro.data import corpora
from kvrepro.data.sources import source
from kvrepro.errors import InputError, unknown
from kvrepro.evaluate.arms import admission_arms, check_budgets, eviction_arms
from kvrepro.methods import allocation, eviction
from kvrepro.models import registry
from kvrepro.results import REFERENCES

TIERS = Path("config/tiers")
SCHEMAS = Path("workflow/schemas")
ROOM = 256  #: tokens of a RULER prompt that are question and answer, at most


def load(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the tier that ``config`` names, with the other keys of ``config`` laid over it.

    Paths are relative to the root of the repository, which must be the working directory. Raises InputError, one
    sentence, for an unknown name, an impossible value or a missing file.
    """
    overrides = dict(config)
    if not isinstance(tier := overrides.pop("tier", None), str):
        raise InputError("config/config.yaml: the key tier is missing; set it to the name of a file in config/tiers.")
    settings = merge(read_tier(tier), overrides) | {"tier": tier}
    validate(settings, "config", f"tier {tier}")
    validate({"models": registry.entries()}, "models", str(registry.REGISTRY))
    check(settings)
    return settings


def read_tier(name: str) -> dict[str, Any]:
    """A tier file with what it inherits; a key that is a mapping is merged, any other is replaced."""
    path = TIERS / f"{name}.yaml"
    if not path.exists():
        raise unknown("tier", name, (p.stem for p in TIERS.glob("*.yaml") if p.stem != "base"), "tier")
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())}); correct it.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no mapping of keys to values; see config/README.md.")
    base = content.pop("inherits", None)
    return merge(read_tier(base), content) if base else content


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``: mappings are merged, anything else is replaced, null removes a key."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def validate(content: Any, schema: str, where: str) -> None:
    """Validate against ``workflow/schemas/<schema>.schema.yaml``; InputError for the first fault, named by its key."""
    definition = yaml.safe_load((SCHEMAS / f"{schema}.schema.yaml").read_text())
    errors = list(jsonschema.Draft202012Validator(definition).iter_errors(content))
    if errors:
        raise _sentence(min(errors, key=lambda e: [str(p) for p in e.path]), definition, where)


RULES = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be above {}",
    "type": "must be of type {}",
    "enum": "must be one of {}",
    "pattern": "must match {}",
    "minItems": "must have at least {} entries",
    "maxItems": "must have at most {} entries",
}


def _sentence(error: jsonschema.ValidationError, definition: dict, where: str) -> InputError:
    """What a schema error means, in one sentence that ends with the description of the key."""
    key = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.path).lstrip(".")
    at = f"{where}: {key}" if key else where
    if error.validator == "additionalProperties" and "properties" in error.schema:
        allowed = error.schema["properties"]
        return unknown("key", next(name for name in error.instance if name not in allowed), allowed, at)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return InputError(f"{at}: the key {missing!r} is missing; add it.")
    if error.validator == "oneOf":
        keys = " and ".join(option["required"][0] for option in error.validator_value)
        return InputError(f"{at}: give exactly one of {keys}.")
    value = json.dumps(error.instance, default=str)
    rule = RULES.get(error.validator, "must not repeat an entry" if error.validator == "uniqueItems" else error.message)
    text = f"{at}: {value[:60]} {rule.format(error.validator_value)}"
    meaning = _describe(definition, error.path)
    return InputError(f"{text} ({meaning})." if meaning else f"{text}.")


def _describe(definition: dict, path: Iterable[str | int]) -> str:
    """The description of a key in a schema; an entry of a list has its list's."""
    node, text = definition, ""
    for part in path:
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
        text = node.get("description", text)
    return text


def check(settings: Mapping[str, Any]) -> None:
    """What a schema cannot say: names that must exist, values that must fit each other."""
    known = registry.entries()
    for role, names in settings["models"].items():
        for name in names:
            if name not in known:
                raise unknown("model", name, known, f"models.{role}")
            _check_role(role, name, known[name])
    _check_labels(settings["labels"])
    ruler = settings["ruler"]
    for task in ruler["tasks"]:
        if task not in TASKS:
            raise unknown("RULER task", task, TASKS, "ruler.tasks")
    prose = ruler["sources"].get("prose")
    if prose is not None and prose not in corpora.names():
        raise unknown("corpus", prose, corpora.names(), "ruler.sources.prose")
    if prose is None and "essays" not in ruler["sources"]:
        raise InputError("ruler.sources: there is no haystack; give prose or essays.")
    for family in ("eviction", "admission"):
        if taken := [name for name in REFERENCES if name in settings[family]]:
            raise InputError(
                f"{family}.{taken[0]}: rows of the unpruned model have this name; give the arm another one and name "
                "its method with the key method."
            )
    made_later = {field: "" for name in eviction.names() for field in eviction.artifacts(name)}
    arms = eviction_arms(settings["eviction"], ruler["kept"], None, made_later)
    for arm in arms:
        if arm.rule not in allocation.RULES:
            raise unknown("allocation", arm.rule, allocation.RULES, f"eviction.{arm.name}.allocation")
    try:
        check_budgets(arms + admission_arms(settings["admission"], ruler["kept"]), ruler["length"] - ROOM, protected=0)
    except InputError as error:
        raise InputError(f"ruler.kept at ruler.length {ruler['length']}: {error}") from error


def commands() -> dict[str, str]:
    """What reproduces each shipped tier, by its name; tiers that need a GPU are installed with the stack cuda."""
    names = sorted(path.stem for path in TIERS.glob("*.yaml") if path.stem != "base")
    return {name: command(name, read_tier(name)["device"]) for name in names}


def command(tier: str, device: str) -> str:
    """What reproduces a tier on a device."""
    return f"make reproduce TIER={tier}" + (" STACK=cuda" if device.startswith("cuda") else "")


def _check_role(role: str, name: str, entry: Mapping[str, Any]) -> None:
    """A local model must be of the class its role studies; hub models are read when they are loaded."""
    path = Path(entry.get("path", "")) / "config.json"
    if "path" in entry and path.exists():
        config = json.loads(path.read_text())
        kinds = config.get("text_config", config).get("layer_types", [])
        if (role == "hybrid") != ("linear_attention" in kinds):
            other = {"hybrid": "dense", "dense": "hybrid"}[role]
            raise InputError(f"models.{role}: {name!r} is not of that class ({path}); name it under models.{other}.")


def _check_labels(labels: Mapping[str, Any]) -> None:
    names = []
    for entry in labels["corpora"]:
        names.append(corpus := source(entry).name)
        if isinstance(entry, str) and corpus not in corpora.names():
            raise unknown("corpus", corpus, corpora.names(), "labels.corpora")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"labels.corpora: {twice[0]!r} stands there twice; give each corpus a name of its own.")
    low, high = labels["tokens"]
    if low > high:
        raise InputError(f"labels.tokens: {low} to {high} is no range; give the shortest length first.")


def ready(settings: Mapping[str, Any], local: bool = True) -> None:
    """Raise InputError when this machine lacks what the tier needs: files, weights, and a GPU where jobs run here."""
    known = registry.entries()
    for name in (n for names in settings["models"].values() for n in names):
        path = known[name].get("path")
        if path and not list(Path(path).glob("*.safetensors")):
            raise InputError(f"model {name!r}: {path} holds no weights; restore it (git checkout {path}) or train it.")
    for key in OFFICIAL_FILES:
        path = settings["ruler"]["sources"].get(key)
        if path and not Path(path).exists():
            raise InputError(f"ruler.sources.{key}: {path} does not exist; download it or name the place where it is.")
    if local and settings["device"].startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise InputError(
                f"tier {settings['tier']} has device {settings['device']!r} and no CUDA GPU is visible; run it on a "
                "GPU node, submit it with a cluster profile, or choose the tier quick."
            )
