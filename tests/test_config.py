"""Tier configs: what loads, and the one sentence for what does not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from kvrepro import config, identity, remembered, wheels
from kvrepro.analysis.names import ABLATION
from kvrepro.benchmarks import helmet
from kvrepro.benchmarks.registry import benchmark
from kvrepro.benchmarks.scbench import TASKS
from kvrepro.data.sources import _wanted, source
from kvrepro.errors import InputError
from kvrepro.evaluate import arms


def sentence(**overrides) -> str:
    with pytest.raises(InputError) as caught:
        config.load({"tier": "quick"} | overrides)
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".")
    return text


def gatesight(**keys) -> dict:
    return {"experiments": {"gatesight": keys}}


def ruler(**keys) -> dict:
    return {"benchmarks": {"ruler": keys}}


def methods(**named) -> dict:
    return gatesight(methods=named)


METHODS = ("gatesight", "kvzip", "snapkv", "triattention", "keydiff", "random")
SCBENCH = {"length": 4096, "items": 1, "tasks": ["kv"], "sources": {"prose": "kjv", "word_count": 50}}


@pytest.mark.parametrize(("tier", "tasks"), [("quick", 8), ("lab", 13), ("paper", 13)])
def test_shipped_tiers_are_valid(tier, tasks):
    settings = config.load({"tier": tier})
    assert settings["tier"] == tier and len(settings["benchmarks"]["ruler"]["tasks"]) == tasks


def test_lab_is_the_grid_of_the_paper():
    settings = config.load({"tier": "lab"})
    assert settings["benchmarks"]["ruler"]["items"] == 100 and settings["benchmarks"]["ruler"]["length"] == 4096
    assert settings["experiments"]["gatesight"]["kept"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    scbench = settings["benchmarks"]["scbench"]
    assert tuple(scbench["tasks"]) == TASKS and scbench["items"] == 50 and scbench["length"] == 4096
    assert scbench["sources"] and "turns" not in scbench


def test_paper_asks_every_question_of_the_published_contexts_at_the_published_lengths():
    settings = config.load({"tier": "paper"})["benchmarks"]["scbench"]
    assert tuple(settings["tasks"]) == TASKS and settings["data"] and settings["length"] == 262144
    assert not {"turns", "most_new_tokens", "sources"} & set(settings)


def test_the_allocation_ablation_is_on_three_tasks_of_each_benchmark_where_there_is_time():
    for tier in ("lab", "paper"):
        tasks = config.load({"tier": tier})["budgets"]["tasks"]
        assert set(ABLATION["scbench"]) == set(tasks["scbench"]) and set(ABLATION["ruler"]) < set(tasks["ruler"])
        assert config.load({"tier": tier})["budgets"]["items"] == 100  # RULER's; SCBench has fewer, and all are asked
    assert set(config.load({"tier": "quick"})["budgets"]["tasks"]) == {"ruler"}


def test_helmet_is_asked_as_published_and_offline_in_short():
    paper, lab = (config.load({"tier": tier})["benchmarks"]["helmet"] for tier in ("paper", "lab"))
    assert tuple(paper["tasks"]) == tuple(lab["tasks"]) == helmet.TASKS
    assert paper["length"] == 32768 and paper["data"] and not {"items", "most_new_tokens", "sources"} & set(paper)
    assert lab["length"] == 4096 and lab["items"] == 50 and lab["sources"] and "data" not in lab
    given = {"tier": "quick", "benchmarks": {"helmet": {"data": {"trec_fine": "data/HELMET"}}}}
    assert config.load(given)["benchmarks"]["helmet"]["data"] == {"trec_fine": "data/HELMET"}
    assert "must be" in sentence(benchmarks={"helmet": {"data": 3}})


@pytest.mark.parametrize("tier", ["quick", "lab", "paper"])
def test_every_tier_runs_all_methods_at_the_same_kept_fractions(tier):
    found = config.load({"tier": tier})["experiments"]["gatesight"]["methods"]
    assert tuple(found)[: len(METHODS)] == METHODS and set(found) - set(METHODS) <= {"l2_norm"}
    assert not any({"kept", "benchmarks"} & set(method) for method in found.values())


def test_the_papers_labels_are_of_no_document_that_names_a_long_context_benchmark():
    corpora = [source(entry) for entry in config.load({"tier": "paper"})["labels"]["corpora"]]
    assert len(corpora) == 9 and len({each.exclude for each in corpora}) == 1
    assert {"RULER", "SCBench", "LongBench", "InfiniteBench", "HELMET", "LongProc"} <= set(corpora[0].exclude)
    assert _wanted(["on RULER-8K", "a ruler of wood"], corpora[0].exclude, None) == ("a ruler of wood",)


def laid_over(model: str = "lab-dense", **keys) -> dict:
    return {"models": {model: keys}}


LAB = {"tier": "lab"}


def test_keys_of_a_model_are_laid_over_the_tier_for_it_alone():
    settings = config.load(LAB)
    dense, small, registers = (config.own(settings, name) for name in settings["experiments"]["wg_kv"]["models"])
    assert dense["benchmarks"]["reasoning"] == settings["benchmarks"]["reasoning"]
    assert dense["benchmarks"]["ruler"] == settings["benchmarks"]["ruler"] | {"items": 25}
    assert dense["write_gates"] == settings["write_gates"]
    assert set(dense["experiments"]) == {"wg_kv"} and small["experiments"]["wg_kv"]["benchmarks"] == ["ruler", "helmet"]
    assert registers["experiments"]["wg_kv"]["models"] == ["lab-dense-registers"]
    assert registers["experiments"]["wg_kv"]["benchmarks"] == ["reasoning"]
    assert registers["benchmarks"]["reasoning"]["items"] >= 100
    ruler, helmet = small["benchmarks"]["ruler"], small["benchmarks"]["helmet"]
    assert ruler["items"] * len(ruler["tasks"]) + helmet["items"] * len(helmet["tasks"]) <= 500
    gates = config.gate_recipe("SmolLM2-135M-Instruct", small["write_gates"]["recipe"])[0]
    heads, methods = small["write_gates"]["head_profile"], small["experiments"]["wg_kv"]["methods"]
    assert ruler["length"] == helmet["length"] == 1024 == 32768 // 32  # so 256 and 128 are 8 and 4
    assert gates["window"] == methods["duo_attention"]["admission"]["window"] == heads["window"] == 8
    assert methods["local_attention"]["admission"]["sinks"] == heads["sinks"] == 4
    assert methods["quest"]["selection"]["local"] == 8 and "models" not in small


def test_a_faulty_key_of_a_model_is_one_sentence():
    assert "did you mean 'lab-dense'" in sentence(**laid_over("lab-dens"))
    assert "models.lab-dense: key 'benchmark' is unknown" in sentence(**laid_over(benchmark={}))
    long = {"ruler": {"length": 32768}}
    assert "models.lab-dense: benchmarks.ruler.length: 32768 exceeds" in sentence(**laid_over(benchmarks=long))
    elsewhere = {"wg_kv": {"models": ["lab-dense"]}}
    assert "put it there" in sentence(**laid_over(experiments=elsewhere))
    assert "put it there" in sentence(**laid_over(experiments={"gatesight": {"analyses": []}}))
    config.load({"tier": "quick"} | laid_over("Llama-3.1-8B-Instruct", benchmarks={"ruler": {"items": 1}}))


def test_a_window_must_end_before_what_is_asked_does():
    text = sentence(write_gates={"recipe": {"window": 700}})
    assert "the window of 700 tokens in config/write_gates/lab-dense.yaml covers all of helmet" in text


def test_a_tier_changes_only_what_it_names():
    quick, base = config.load({"tier": "quick"}), config.read_tier("base")
    assert quick["estimators"] == base["estimators"]
    assert quick["labels"]["corpora"][:5] == base["labels"]["corpora"]
    assert config.load({"tier": "lab-texts"})["labels"]["corpora"] == base["labels"]["corpora"]
    assert quick["labels"]["documents"] != base["labels"]["documents"]


def gates(options: dict) -> dict:
    method = {"admission": {"method": "write_gate", **options}, "over": None}
    return {"experiments": {"wg_kv": {"methods": {"wg_kv": method}}}}


def test_overrides_are_laid_over_the_tier_and_null_removes():
    settings = config.load(
        {
            "tier": "quick",
            "benchmarks": {"ruler": {"items": 3}},
            "experiments": {"gatesight": {"methods": {"keydiff": None}}},
        }
    )
    assert settings["benchmarks"]["ruler"]["items"] == 3 and settings["benchmarks"]["ruler"]["length"] > 3
    methods = settings["experiments"]["gatesight"]["methods"]
    assert "keydiff" not in methods and methods["random"] == {"eviction": "random"}


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"tier": "quik"}, ["tier", "'quik'", "did you mean 'quick'"]),
        ({"benchmark": {}}, ["'benchmark'", "did you mean 'benchmarks'", "labels"]),
        ({"benchmarks": {"rulr": {}}}, ["'rulr'", "did you mean 'ruler'"]),
        (ruler(item=3), ["benchmarks.ruler", "'item'", "did you mean 'items'"]),
        (gatesight(kept=[0]), ["experiments.gatesight.kept[0]", "0 must be above 0", "kept, not removed"]),
        (gatesight(kept=[1.5]), ["experiments.gatesight.kept[0]", "at most 1"]),
        (gatesight(kept=[0.5, 0.5]), ["experiments.gatesight.kept", "repeat"]),
        (ruler(length=100), ["benchmarks.ruler.length", "100 must be at least 512"]),
        (ruler(items="two"), ["benchmarks.ruler.items", "type integer"]),
        (ruler(tasks=["niah_sngle_1"]), ["benchmarks.ruler.tasks", "did you mean 'niah_single_1'"]),
        (ruler(sources={"prose": "kvj"}), ["benchmarks.ruler.sources.prose", "did you mean 'kjv'"]),
        (gatesight(models=["lab-hybird"]), ["experiments.gatesight.models", "did you mean 'lab-hybrid'"]),
        (gatesight(models=["lab-dense"]), ["gatesight.analyses", "'lab-dense' has none", "name a hybrid model"]),
        (gatesight(benchmarks=["rulr"]), ["experiments.gatesight.benchmarks", "did you mean 'ruler'"]),
        (gatesight(analyses=["predictor"]), ["experiments.gatesight.analyses[0]", "predictors"]),
        ({"experiments": {"gatesigth": {}}}, ["'gatesigth'", "did you mean 'gatesight'"]),
        (
            {"experiments": {"wg_kv": {"models": ["lab-hybrid"]}}},
            ["lab-hybrid runs ruler both in gatesight and in wg_kv"],
        ),
        (methods(it={"eviction": "snapvk"}), ["methods.it.eviction", "did you mean 'snapkv'", "keydiff"]),
        (methods(it={"evict": "snapkv"}), ["methods.it", "did you mean 'eviction'"]),
        (methods(snapkv={"eviction": {"windw": 3}}), ["snapkv", "did you mean 'window'"]),
        (methods(snapkv={"eviction": {"window": 0}}), ["snapkv", "window"]),
        (methods(snapkv={"allocation": "flt"}), ["allocation", "did you mean 'flat'"]),
        (methods(it={"admission": "local_attenton"}), ["admission", "did you mean 'local_attention'"]),
        (
            methods(it={"admission": {"method": "local_attention", "sinks": 900}}),
            ["900 sinks", "local_attention.sinks"],
        ),
        (methods(it={"selection": {"method": "quest", "budget": 8}}), ["no room for a page", "quest.local"]),
        (gates({"trade_off": 0.5}), ["wg_kv.admission.trade_off", "lambda 0.5", "lab-dense", "0.16, 0.64"]),
        (gates({}), ["wg_kv.admission.trade_off", "lambda None", "name one of"]),
        (gates({"trade_off": 0.16, "threshold": 2}), ["threshold is 2"]),
        ({"write_gates": {"recipe": {"together": 0}}}, ["together is 0", "integer of at least 1"]),
        ({"write_gates": {"recipe": {"together": "seven"}}}, ["together is 'seven'", "integer of at least 1"]),
        ({"write_gates": {"recipe": {"steps": 2.5}}}, ["steps is 2.5", "integer of at least 1"]),
        ({"write_gates": {"recipe": {"lambdas": [0.16]}}}, ["lambda 0.64", "name one of 0.16"]),
        ({"budgets": {"tasks": {"rulr": ["vt"]}}}, ["budgets.tasks", "did you mean 'ruler'"]),
        ({"budgets": {"tasks": {"ruler": ["vtt"]}}}, ["budgets.tasks.ruler", "did you mean 'vt'"]),
        ({"budgets": {"ruler": {"length": 100}}}, ["budgets.ruler.length", "100 must be at least 512"]),
        ({"budgets": {"tasks": {"ruler": []}}}, ["budgets.tasks.ruler", "at least 1"]),
        (
            gatesight(benchmarks=["scbench"]),
            ["budgets.tasks", "experiments.gatesight", "runs none of these; add one"],
        ),
        ({"labels": {"corpora": ["kjv", "stdlb"]}}, ["labels.corpora", "did you mean 'stdlib'"]),
        ({"labels": {"corpora": ["kjv"]}}, ["labels.corpora", "at least 2"]),
        ({"labels": {"corpora": ["kjv", "kjv"]}}, ["labels.corpora", "twice"]),
        ({"labels": {"tokens": [300, 200]}}, ["labels.tokens", "300 to 200"]),
        (methods(it={"eviction": {"method": "snapkv", "window": "3"}}), ["it.eviction.window: '3'", "type int"]),
        (methods(it={"eviction": {"method": "snapkv", "window": True}}), ["window: True", "type int"]),
        (methods(it={"eviction": {"method": "snapkv", "window": 5000}}), ["it: a window of 5000 tokens covers all"]),
        (methods(it={"eviction": {"method": "gatesight", "estimators": "a"}}), ["option 'estimators' is unknown"]),
        (methods(it={"admission": {"method": "local_attention", "sinks": -1}}), ["-1 sinks"]),
        (methods(**dict.fromkeys(METHODS)), ["gatesight.methods", "at least 1 entry"]),
        (
            {"experiments": {"wg_kv": {"methods": {"it": {"eviction": "gatesight"}}}}},
            ["wg_kv.methods.it", "'lab-dense' has none"],
        ),
        (
            {"experiments": {"wg_kv": {"methods": {"it": {"eviction": "random", "allocation": "gate_proportional"}}}}},
            ["wg_kv.methods.it", "output gates", "'lab-dense' has none"],
        ),
        (methods(it={"admission": "write_gate"}), ["methods.it", "write_gates/lab-hybrid.yaml is missing"]),
        (ruler(length=10**6), ["benchmarks.ruler.length: 1000000 exceeds", "lab-hybrid"]),
        ({"benchmarks": {"ruler": None}}, ["benchmarks", "'ruler' is missing"]),
        (
            {"observations": {"sets": [{"tokens": n, "documents": 5} for n in (2048, 2100)]}},
            ["observations.sets", "called 2K"],
        ),
        ({"labels": {"corpora": ["kjv", {"name": "a", "folder": 3}]}}, ["corpora[1].folder", "type string"]),
        ({"labels": {"corpora": ["kjv", {"folder": "a"}]}}, ["corpora[1]", "'name' is missing"]),
        ({"labels": {"corpora": ["kjv", {"name": "a", "folder": "a", "exclude": "R"}]}}, ["exclude", "type array"]),
        (methods(full={"eviction": "full"}), ["methods.full", "unpruned model"]),
        (methods(dense={"admission": "local_attention"}), ["methods.dense", "unpruned model"]),
        ({"benchmarks": {"scbench": SCBENCH | {"tasks": ["kvv"]}}}, ["SCBench task", "did you mean 'kv'"]),
        (
            {"benchmarks": {"scbench": SCBENCH | {"sources": {"prose": None}}}},
            ["benchmarks.scbench", "give data or sources"],
        ),
        (
            {"benchmarks": {"helmet": {"data": {"kilt_nq": "data/HELMET"}}}},
            ["kilt_nq: no passages are published for 1024 tokens", "one of 8192"],
        ),
        ({"device": "gpu"}, ["device", "cuda"]),
        ({"estimators": {"learning_rate": 0}}, ["estimators.learning_rate", "above 0"]),
        ({"estimators": {"models": {"lab-hybird": {"epochs": 8}}}}, ["estimators.models", "did you mean 'lab-hybrid'"]),
        ({"patterns": {"contexts": {"third": {"corpus": "kjv"}}}}, ["patterns.contexts", "at most 2 entries"]),
        (
            {"labels": {"corpora": ["kjv", {"name": "it", "ruler": {"prose": "kvj"}}]}},
            ["labels.corpora: 'it'", "did you mean 'kjv'"],
        ),
        (
            {"labels": {"corpora": ["kjv", {"name": "it", "folder": "a", "ruler": {"prose": "kjv"}}]}},
            ["labels.corpora: 'it' gives ruler and folder"],
        ),
        ({"patterns": {"bounding": {"method": "snapvk"}}}, ["patterns.bounding", "did you mean 'snapkv'"]),
        ({"patterns": {"bounding": {"bugdet": 9}}}, ["patterns.bounding", "did you mean 'budget'"]),
        ({"patterns": {"bounding": {"budget": 32}}}, ["budget of 32 entries", "raise it above 32"]),
        ({"patterns": {"bounding": {"method": None}}}, ["patterns.bounding", "'method' is missing"]),
    ],
    ids=str,
)
def test_a_fault_is_one_sentence(overrides, parts):
    text = sentence(**overrides)
    for part in parts:
        assert part in text, text


def test_every_shipped_tier_has_a_command():
    found = config.commands()
    assert set(found) == {"quick", "lab", "lab-texts", "paper"} and found["quick"] == "make reproduce TIER=quick"
    assert found["lab"] == "make reproduce TIER=lab STACK=cuda"


def test_a_missing_tier_key():
    with pytest.raises(InputError, match="the key tier is missing"):
        config.load({})


def test_a_tier_file_that_is_not_yaml(tmp_path, monkeypatch):
    (tmp_path / "bad.yaml").write_text("ruler: [1,\n  items: 3")
    monkeypatch.setattr(config, "TIERS", tmp_path)
    with pytest.raises(InputError, match=r"bad\.yaml is not YAML"):
        config.load({"tier": "bad"})


def test_a_key_that_a_file_gives_twice(tmp_path, monkeypatch):
    (tmp_path / "twice.yaml").write_text("inherits: quick\nseed: 1\nseed: 2\n")
    monkeypatch.setattr(config, "TIERS", tmp_path)
    with pytest.raises(InputError, match=r"twice\.yaml is not YAML \(seed is given twice"):
        config.load({"tier": "twice"})


@pytest.mark.parametrize(
    ("text", "told"), [("models: [1", "is not YAML"), ("", "key models is missing"), ("- a", "holds no mapping")]
)
def test_a_registry_that_cannot_be_read(tmp_path, text, told):
    (tmp_path / "models.yaml").write_text(text)
    with pytest.raises(InputError, match=told):
        config.registry.entries(tmp_path / "models.yaml")


def test_a_registry_entry_without_a_place(tmp_path, monkeypatch):
    registry = tmp_path / "models.yaml"
    registry.write_text("models: {lab-hybrid: {dtype: float32}}")
    monkeypatch.setattr(config.registry.entries, "__defaults__", (registry,))
    assert "give exactly one of path and hub" in sentence()


def test_ready_names_what_this_machine_lacks(monkeypatch, tmp_path):
    settings = config.load(
        {
            "tier": "lab",
            "experiments": {"gatesight": {"models": ["Qwen3.8-27B"]}, "wg_kv": {"models": ["Qwen3-4B-Instruct-2507"]}},
        }
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no CUDA GPU is visible"):
        config.ready(settings)
    config.ready(settings, local=False)  # a cluster's jobs run elsewhere
    settings["benchmarks"]["ruler"]["sources"] = {"essays": str(tmp_path / "none.json")}
    with pytest.raises(InputError, match=r"benchmarks.ruler.sources.essays: .* does not exist"):
        config.ready(settings, local=False)


def test_ready_wants_the_weights(monkeypatch, tmp_path):
    settings = config.load({"tier": "quick"})
    registry = tmp_path / "models.yaml"
    registry.write_text(yaml.safe_dump({"models": {n: {"path": str(tmp_path)} for n in ("lab-hybrid", "lab-dense")}}))
    monkeypatch.setattr(config.registry.entries, "__defaults__", (registry,))
    with pytest.raises(InputError, match="holds no weights"):
        config.ready(settings)
    save_file({"a": torch.zeros(8)}, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors", "b": "two"}}')
    with pytest.raises(InputError, match="lacks the weights two; restore it"):
        config.ready(settings)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(InputError, match=r"index\.json is corrupt"):
        config.ready(settings)
    (tmp_path / "model.safetensors.index.json").unlink()
    config.ready(settings)
    whole = (tmp_path / "one.safetensors").read_bytes()
    for broken in (whole[:-8], b"", whole[:3], whole[:8] + b"]" + whole[9:], b"\xff" * 8 + whole[8:]):
        (tmp_path / "one.safetensors").write_bytes(broken)
        with pytest.raises(InputError, match=r"truncated or corrupt weights in one\.safetensors"):
            config.ready(settings)


def test_ready_says_what_makes_weights_that_are_no_part_of_the_repository(monkeypatch, tmp_path):
    settings, entries = config.load(LAB), config.registry.entries()
    for entry in entries.values():
        entry["path"] = str(tmp_path / "none") if "wheel" in entry else entry.get("path", "")
    registry = tmp_path / "models.yaml"
    registry.write_text(yaml.safe_dump({"models": entries}))
    monkeypatch.setattr(config.registry.entries, "__defaults__", (registry,))
    assert wheels.missing("quick") == []
    assert wheels.missing("lab") == ["SmolLM2-135M-Instruct"]
    with pytest.raises(InputError, match=r"make it \(python -m kvrepro\.models\.wheel SmolLM2"):
        config.ready(settings, local=False)


def test_ready_reads_the_claims(monkeypatch, tmp_path):
    (tmp_path / "gatesight.yaml").write_text("paper: gatesight\n")
    monkeypatch.setattr(config.ledger.claims, "__defaults__", (tmp_path, config.ledger.SCHEMA))
    with pytest.raises(InputError, match=r"gatesight\.yaml: 'tolerances' is a required property"):
        config.ready(config.load({"tier": "quick"}))


def test_ready_wants_the_folders_of_corpora():
    settings = config.load({"tier": "quick", "labels": {"corpora": ["kjv", {"name": "mine", "folder": "nowhere"}]}})
    with pytest.raises(InputError, match="'mine': the folder nowhere does not exist"):
        config.ready(settings)
    settings = config.load({"tier": "quick", "patterns": {"code": {"name": "mine", "folder": "nowhere"}}})
    with pytest.raises(InputError, match="patterns: 'mine': the folder nowhere does not exist"):
        config.ready(settings)


def test_every_schema_key_is_described():
    def undescribed(node: dict, path: str):
        for key, child in node.get("properties", {}).items():
            if "description" not in child:
                yield f"{path}.{key}"
            yield from undescribed(child, f"{path}.{key}")

    for name in ("config", "models"):
        schema = yaml.safe_load(Path(f"workflow/schemas/{name}.schema.yaml").read_text())
        assert list(undescribed(schema, name)) == []


def test_code_identity_ignores_comments_and_docstrings(tmp_path):
    file = tmp_path / "method.py"
    file.write_text('"""One."""\ndef f(x):\n    """Doc."""\n    return x + 1\n')
    first = identity.code([file])
    file.write_text('"""Two."""\n\n\ndef f(x):\n    # why\n    return x + 1\n')
    assert identity.code([file]) == first
    file.write_text("def f(x):\n    return x + 2\n")
    assert identity.code([file]) != first


def test_texts_count_by_content_whether_file_or_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "FOLDER", tmp_path / "kept")
    data = tmp_path / "data"
    data.mkdir()
    (data / "kv.jsonl").write_text("{}")
    (data / "other.jsonl").write_text("{}")
    settings = SCBENCH | {"data": str(data)}

    def mark() -> str:
        return identity.texts(benchmark("scbench"), settings)["data"]

    first = mark()
    (data / "kv.jsonl").touch()
    assert mark() == first
    (data / "kv.jsonl").write_text("{ }")
    assert mark() != first
    shutil.rmtree(data)
    assert mark() == "missing"


def test_a_corpus_of_a_folder_counts_by_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = {"name": "mine", "folder": "texts"}
    found = {identity.corpus(entry)}
    (tmp_path / "texts").mkdir()
    for text in ("one", "another"):
        (tmp_path / "texts/a.jsonl").write_text(f'{{"text": "{text}"}}\n')
        found.add(identity.corpus(entry))
    assert len(found) == 3 and identity.corpus(entry) in found


def test_a_second_benchmark_takes_part_by_its_name():
    experiments = {"gatesight": {"benchmarks": ["ruler", "scbench"]}}
    settings = config.load({"tier": "quick", "benchmarks": {"scbench": SCBENCH}, "experiments": experiments})
    assert settings["experiments"]["gatesight"]["benchmarks"] == ["ruler", "scbench"]
    assert "'scbench'" in sentence(benchmarks={"scbench": None})


def test_methods_are_described_by_their_files_and_what_they_need(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "FOLDER", tmp_path)
    quest = {"method": "quest", "budget": 300}
    both = {"eviction": "gatesight", "selection": quest}
    settings = config.load({"tier": "quick"} | methods(both=both))
    found = config.described(settings, "gatesight")
    assert found["both"]["artifacts"] == ["estimators"] and found["random"]["artifacts"] == []
    assert [Path(file).stem for file in found["both"]["files"]] == ["quest", "gatesight"]

    monkeypatch.setattr(arms, "described", lambda *_: pytest.fail("it is described already"))
    assert config.described(settings, "gatesight") == found
    monkeypatch.setattr(arms, "described", lambda *_: {})
    changed = config.merge(settings, methods(both={"selection": {"budget": 400}}))
    assert config.described(changed, "gatesight") == {}


def test_what_was_described_is_forgotten_when_code_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "FOLDER", tmp_path / "kept")
    (tmp_path / "method.py").write_text("x = 1")
    made = iter(range(9))

    def ask() -> int:
        return remembered.remembered(["a"], [tmp_path / "method.py"], lambda: next(made))

    assert [ask(), ask()] == [0, 0]
    (tmp_path / "method.py").write_text("x = 22")
    assert [ask(), ask()] == [1, 1]
    next((tmp_path / "kept").iterdir()).write_text("{")
    assert ask() in (1, 2)


@pytest.mark.parametrize("module", ["kvrepro.config", "kvrepro.identity"])
def test_a_tier_is_read_without_the_models_stack(module):
    code = (
        f"import sys, {module}; from kvrepro.config import described, load; load({{'tier': 'quick'}});"
        "sys.exit(' '.join({'torch', 'transformers', 'pandas', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    config.load({"tier": "quick"})  # described once
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
