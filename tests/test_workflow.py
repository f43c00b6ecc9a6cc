"""The workflow: its jobs, what starts them again and what does not, its one-sentence faults, and every script.

Rules are run with stub scripts that write their outputs at once, since what is under test is which of them run. The
real scripts run further down, in this process, on tiny random models.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from snakemake.cli import main

import kvrepro.config
import kvrepro.identity
from kvrepro import locks
from kvrepro.analysis import published
from kvrepro.methods import eviction
from kvrepro.methods.composition import running
from kvrepro.products import FIGURES, TABLES
from kvrepro.results import config_hash, read_rows, sha256_file
from kvrepro.training.gates.recipe_file import trained_together

ROOT = Path(__file__).parent.parent
STUB = """
from pathlib import Path
for path in snakemake.output:
    Path(path).write_text(" ".join(map(str, snakemake.input)) + str(dict(snakemake.params)))
"""
TOY = '''"""A toy."""
from dataclasses import dataclass

import torch

from kvrepro.methods.eviction.base import Eviction


@dataclass
class Toy(Eviction):
    """A toy: the youngest entries."""

    name = "toy"
    step: float = 1.0

    def score(self, prefill):
        return [torch.arange(k.shape[1]).expand(k.shape[:2]) * self.step for k in prefill.keys]
'''


def checkout(path: Path, models: dict[str, Path], stubs: bool) -> Path:
    """A copy of what the workflow consists of, with models of the caller's and a small tier."""
    shutil.copy(ROOT / "Snakefile", path)
    for folder in ("workflow", "config", "envs"):
        shutil.copytree(ROOT / folder, path / folder)
    for name, directory in models.items():
        shutil.copytree(directory, path / "models" / name)
    tier = {
        "description": "for tests",
        "inherits": "lab-base",
        "labels": {
            "corpora": ["kjv", "stdlib"],
            "documents": 2,
            "tokens": [48, 64],
            "rollouts": 2,
            "rollout_tokens": 4,
        },
        "estimators": {"epochs": 1, "positions": 16},
        "experiments": {
            "gatesight": {"kept": [0.2, 1.0], "methods": {"kvzip": None, "triattention": None}},
            "wg_kv": {
                "kept": [0.2, 1.0],
                "methods": {
                    "wg_kv": {"over": {"admission": {"trade_off": [0.08, 0.64]}}},
                    "local_attention": {"admission": {"sinks": 4}},
                    "quest": {"selection": {"local": 16}, "over": {"selection": {"budget": [64, 128]}}},
                    "wg_kv+quest": {"over": {"selection": {"budget": [64]}}},
                    "snapkv": {"over": {"bounding": {"budget": [64]}}},
                    "wg_kv+snapkv": {"over": {"admission": {"trade_off": [0.64]}, "bounding": {"budget": [64]}}},
                },
            },
        },
        "benchmarks": {
            "ruler": {"items": 2, "length": 1000, "tasks": ["niah_single_1", "qa_1"]},
            "scbench": {"items": 1, "length": 1000, "turns": 2, "most_new_tokens": 8, "tasks": ["vt", "many_shot"]},
            "helmet": {"items": 1, "length": 1000, "most_new_tokens": 8, "tasks": ["trec_fine"]},
            "reasoning": {"items": 1, "length": 640, "registers": 3},
        },
        "observations": {
            "windows": [2, 6],
            "sets": [{"tokens": 64, "documents": 3}],
            "ruler": {"length": 600, "items": 1, "tasks": ["niah_single_1", "qa_1"]},
        },
        "patterns": {
            "documents": 1,
            "tokens": 200,
            "contexts": {"html_to_tsv": None, "qa_1": {"benchmark": "ruler", "task": "qa_1"}},
            "items": 1,
            "bounding": {"budget": 64},
        },
        "gates": {"calibration": 1, "documents": 1, "share": 0.25, "draws": 1, "rows": 4},
        "budgets": {"tasks": {"ruler": ["qa_1"], "scbench": None}, "items": 1, "kept": [0.2]},
        "write_gates": {
            "recipe": {
                "steps": 2,
                "lengths": {64: 1},
                "batch_tokens": 128,
                "sources": [{"kind": "text", "corpora": ["kjv"]}],
                "validation": 2,
                "thresholds": [0.1, 0.5],
                "lambdas": [0.08, 0.64],
            },
            "head_profile": {"steps": 2},
        },
    }
    (path / "config/tiers/test.yaml").write_text(yaml.safe_dump(tier))
    (path / "config/config.yaml").write_text("tier: test\n")
    if stubs:
        for script in (path / "workflow/scripts").glob("*.py"):
            script.write_text(STUB)
    return path


def snakemake(root: Path, *arguments: str) -> SimpleNamespace:
    """Run Snakemake there, in a forked process, which has torch imported already; its output is in ``stdout``."""
    output = root / "output.txt"

    def child():
        os.chdir(root)
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
        main(["--cores", "2", *arguments])

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return SimpleNamespace(returncode=process.exitcode, stdout=output.read_text())


def planned(root: Path, *arguments: str) -> dict[str, int]:
    """What a dry run would run: rule -> jobs."""
    done = snakemake(root, "--dry-run", *arguments)
    assert done.returncode == 0, done.stdout
    table = re.search(r"^Job stats:\n.*\n-+.*\n((?:.+\n)+)", done.stdout, re.MULTILINE)
    found = dict(line.split() for line in table[1].splitlines()) if table else {}
    return {rule: int(count) for rule, count in found.items() if rule not in ("all", "reference", "total")}


def edit(root: Path, **changes) -> None:
    """Change keys of the small tier."""
    path = root / "config/tiers/test.yaml"
    tier = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(kvrepro.config.merge(tier, changes)))


def methods(**named) -> dict:
    return {"gatesight": {"methods": named}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_hybrid_dir, tiny_dense_dir):
    """A checkout in which everything has run once."""
    models = {"lab-hybrid": tiny_hybrid_dir, "lab-dense": tiny_dense_dir}
    root = checkout(tmp_path_factory.mktemp("workflow"), models, stubs=True)
    done = snakemake(root)
    assert done.returncode == 0, done.stdout
    return root


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished checkout that a test may change; dates are kept."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


OBSERVED = dict.fromkeys(("figure_1", "figure_2", "figure_6", "figure_7", "table_6", "table_7"), 1)
DRAWN = {"table_1": 1, "table_5": 1, "figure_5": 1, "figure_8": 1} | OBSERVED  # from predictors
OF_BUDGETS = {"figure_13": 1, "table_4": 1, "table_d": 1}
OF_SCBENCH = dict.fromkeys(("table_3", "table_scbench", "table_scbench_tasks", "figure_4a", "figure_9"), 1)
OF_SCBENCH |= dict.fromkeys(("table_scbench_scorers", "table_scbench_scorer_tasks", "claims_of_tier"), 1)
OF_REASONING = {"wg_kv_figure_10": 1, "wg_kv_figure_16": 1}
SWEEPS = {"write_gates_of_lambdas": 2 + 5, "write_gates_of_model": 2}  # with a local cache and without
OF_WRITE_GATES = {f"wg_kv_figure_{n}": 1 for n in (7, "7_ruler", 9, "9_ruler", 11, 12)} | OF_REASONING
OF_WRITE_GATES |= {"table_wg_kv_goals": 1}
OF_PATTERNS = {"pattern_rows": 1, "wg_kv_figure_2b": 1, "wg_kv_figure_3": 1, "wg_kv_figure_13": 1, "wg_kv_table_1": 1}
OF_ACCURACY = {
    "unpruned_accuracy": 1,
    "table_3": 1,
    "table_ruler": 1,
    "table_ruler_tasks": 1,
    "figure_4b": 1,
    "figure_11": 1,
    "claims_of_tier": 1,
}


def test_everything_is_made_once(finished):
    assert planned(finished) == {}
    made = {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file() and p.parts[-1][0] != "."}
    assert {
        "results/test/claims.csv",
        "results/test/claims.csv.json",
        "results/test/claims.md",
        "results/test/labels/lab-hybrid/kjv.safetensors",
        "results/test/estimators/lab-hybrid.safetensors",
        "results/test/estimators/lab-hybrid.parquet",
        "results/test/predictors/lab-hybrid.parquet",
        "results/test/prompts/lab-hybrid/ruler/qa_1.jsonl",
        "results/test/prompts/lab-dense/ruler/manifest.csv",
        "results/test/accuracy/lab-hybrid/ruler/qa_1.parquet",
        "results/test/accuracy/lab-hybrid/scbench/vt.parquet",
        "results/test/tables/gatesight/scbench_scorers.md",
        "results/test/tables/gatesight/table_5.csv",
        "results/test/tables/gatesight/table_5.md",
        "results/test/tables/wg_kv/ruler.csv",
        "results/test/tables/wg_kv/ruler.csv.json",
        "results/test/write_gates/lab-dense.parquet",
        *(
            f"figures/test/gatesight/figure_{n}.{kind}"
            for n in ("4a", "4b", "5", "8", "9", "11")
            for kind in ("pdf", "png")
        ),
        *(
            f"figures/test/wg_kv/figure_{n}.{kind}"
            for n in ("2b", 3, 7, 9, 10, 11, 12, 13, 16)
            for kind in ("pdf", "png")
        ),
    } <= made


def test_a_deleted_result_is_made_again_with_what_depends_on_it(run):
    (run / "results/test/accuracy/lab-hybrid/ruler/qa_1.parquet").unlink()
    assert planned(run) == {"benchmark_accuracy": 1} | OF_ACCURACY


def test_a_benchmark_draws_its_own_figures_and_tables(run):
    (run / "results/test/accuracy/lab-hybrid/scbench/vt.parquet").unlink()  # a task of RULER too, by name
    assert planned(run) == {"benchmark_accuracy": 1} | OF_SCBENCH
    edit(run, benchmarks={"scbench": {"turns": 1}})
    assert planned(run) == {"scbench_prompts": 1, "benchmark_accuracy": 2} | OF_SCBENCH
    edit(run, experiments={"gatesight": {"benchmarks": ["ruler"]}})
    assert planned(run) == {"table_3": 1, "claims_of_tier": 1}


def test_published_curves_are_fetched_by_hand_and_drawn_where_they_lie(run):
    assert planned(run, "published_curves") == {"published_curves": 1}
    (run / "workflow/scripts/download.py").write_text("open('asked.txt', 'w').write(str(dict(snakemake.params)))\n")
    assert snakemake(run, "published_curves").returncode == 0
    asked = (run / "asked.txt").read_text()
    assert all(source["url"] in asked and source["sha256"] in asked for source in published.downloads().values())
    over = {f"wg_kv_figure_{n}": 1 for n in (7, 9, 10, 16)}  # losses and heads of another model are not drawn
    for path in published.downloads():
        file = run / published.FOLDER / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    assert planned(run) == over
    assert snakemake(run).returncode == 0 and planned(run) == {}
    assert f"{published.FOLDER}/data/benchmark.csv" in (run / "figures/test/wg_kv/figure_7.png").read_text()
    (run / published.FOLDER / "data/integration_0.08.csv").unlink()
    assert planned(run) == {"wg_kv_figure_9": 1}


def test_an_experiment_may_do_without_ruler(run):
    edit(run, experiments={"wg_kv": {"benchmarks": ["helmet", "reasoning"]}})
    jobs = planned(run)
    assert "wg_kv_table_1" in jobs and "benchmark_accuracy" not in jobs


def test_labels_reach_everything_but_the_dense_model(run):
    (run / "results/test/labels/lab-hybrid/kjv.safetensors").unlink()
    assert (
        planned(run)
        == {
            "label_corpus": 1,
            "estimators_of_model": 1,
            "held_out_predictors": 1,
            "predictor_rows": 1,
            "benchmark_accuracy": 4,
            "window_folds": 1,
            "observation_rows": 1,
            "budget_rows": 1,
        }
        | DRAWN
        | OF_BUDGETS
        | OF_ACCURACY
        | OF_SCBENCH
    )


def test_a_key_reruns_only_the_jobs_that_use_it(run):
    edit(run, predictors={"slow_threshold": 500})
    assert planned(run) == {"predictor_rows": 1, "observation_rows": 1, "claims_of_tier": 1} | DRAWN
    assert "figure_13" not in DRAWN
    edit(run, predictors={"slow_threshold": 1000}, gates={"draws": 2})
    assert planned(run) == {"gate_rows": 1, "claims_of_tier": 1} | OF_BUDGETS


def test_kept_fractions_rerun_the_evaluation_alone(run):
    edit(run, experiments={"gatesight": {"kept": [0.5, 1.0]}, "wg_kv": {"kept": [0.5, 1.0]}})
    assert planned(run) == {"benchmark_accuracy": 8} | OF_ACCURACY | OF_SCBENCH | OF_REASONING | {
        "table_helmet_tasks": 1,
        "table_ruler": 2,
        "table_ruler_tasks": 2,
        "table_wg_kv_goals": 1,
        "unpruned_accuracy": 2,
        "wg_kv_figure_7": 1,
        "wg_kv_figure_7_ruler": 1,
        "wg_kv_figure_9": 1,
        "wg_kv_figure_9_ruler": 1,
        "wg_kv_table_1": 1,
    }


def test_a_method_brings_what_it_needs(run):
    edit(run, experiments=methods(triattention={"eviction": "triattention"}))
    assert planned(run) == {"query_statistics": 1, "benchmark_accuracy": 4} | OF_ACCURACY | OF_SCBENCH


def test_write_gates_are_trained_where_the_tier_names_their_method(run):
    evaluated = {"unpruned_accuracy": 1, "table_ruler": 1, "table_ruler_tasks": 1, "claims_of_tier": 1}
    evaluated |= {"benchmark_accuracy": 4, "table_helmet_tasks": 1}
    edit(run, write_gates={"recipe": {"steps": 3}})  # the rows that heads are identified on have this recipe, too
    assert planned(run) == SWEEPS | {"head_profile_of_model": 1} | evaluated | OF_WRITE_GATES | OF_PATTERNS
    path = run / "config/tiers/test.yaml"
    tier = yaml.safe_load(path.read_text()) | {"write_gates": {"recipe": {}, "head_profile": {"steps": 2}}}
    gated = ("wg_kv", "duo_attention", "wg_kv+quest", "wg_kv+snapkv")
    tier["experiments"]["wg_kv"]["methods"] |= dict.fromkeys(gated)
    path.write_text(yaml.safe_dump(tier))
    gates = {"write_gates_of_lambdas": 7, "write_gates_of_model": 1} | OF_PATTERNS
    assert planned(run) == {"wg_kv_figure_9": 1, "wg_kv_figure_9_ruler": 1} | gates | evaluated | OF_REASONING
    tier["experiments"]["wg_kv"]["methods"]["snapkv"] = None
    path.write_text(yaml.safe_dump(tier))
    assert not set(OF_REASONING) & set(planned(run))  # figures of a limit, without a method that keeps one


def test_a_lambda_more_trains_its_gates_alone(run):
    edit(run, write_gates={"recipe": {"lambdas": [0.08, 0.16, 0.64]}})
    found = planned(run)
    assert (found["write_gates_of_lambdas"], found["write_gates_of_model"]) == (1, 1)
    recipe = run / "config/write_gates/lab-dense.yaml"
    recipe.write_text(recipe.read_text().replace("window: 32\nexpansion: 1.5", "window: 32\nexpansion: 2"))
    assert planned(run)["write_gates_of_lambdas"] == 3 + 5, "and a key of the recipe trains all"


def test_lambdas_that_train_together_are_one_job(run):
    edit(run, write_gates={"recipe": {"lambdas": [0.08, 0.16, 0.64], "together": 2}})
    assert planned(run)["write_gates_of_lambdas"] == 2 + 3, "three in two jobs, and five without a local cache in three"


def test_a_recipe_counts_by_what_it_says_and_not_by_its_date(run):
    recipe = run / "config/write_gates/lab-dense.yaml"
    recipe.touch()  # as a new checkout does
    assert planned(run) == {}
    recipe.write_text(recipe.read_text().replace("learning_rate: 0.2,", "learning_rate: 0.1,"))
    found = planned(run)
    assert found["head_profile_of_model"] == 1 and "write_gates_of_lambdas" not in found


def test_an_option_of_an_eviction_method_leaves_the_dense_model_alone(run):
    edit(run, experiments=methods(snapkv={"eviction": {"window": 16}}))
    assert planned(run)["benchmark_accuracy"] == 4


def test_dates_start_nothing_and_content_does(run):
    shard = next((run / "models/lab-dense").glob("*.safetensors"))
    shard.touch()
    assert planned(run) == {}
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert planned(run) == {
        **SWEEPS,
        "head_profile_of_model": 1,
        "benchmark_accuracy": 4,
        "unpruned_accuracy": 1,
        "table_ruler": 1,
        "table_ruler_tasks": 1,
        "table_helmet_tasks": 1,
        "claims_of_tier": 1,
        **OF_WRITE_GATES,
        **OF_PATTERNS,
    }


def test_committed_results_of_a_tier_are_drawn_and_judged_beside_the_own(run):
    for file in (run / "results/test").rglob("*.parquet*"):
        target = run / "results/reference/test" / file.relative_to(run / "results/test")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    found = planned(run, "all", "reference")
    of_accuracy = {"table_3": 1, "table_ruler": 2, "table_ruler_tasks": 2, "figure_4b": 1, "figure_11": 1}
    of_patterns = {name: 1 for name in OF_PATTERNS if name != "pattern_rows"} | {"table_helmet_tasks": 1}
    assert found == OF_SCBENCH | of_accuracy | DRAWN | OF_BUDGETS | OF_WRITE_GATES | of_patterns
    for younger in ("reasoning", "helmet"):  # older than the benchmarks
        shutil.rmtree(run / f"results/reference/test/accuracy/lab-dense/{younger}")
    (run / "results/reference/test/patterns/lab-dense.parquet").unlink()
    lacking = set(OF_REASONING) | set(of_patterns) | {"wg_kv_figure_7", "wg_kv_figure_9", "table_wg_kv_goals"}
    assert set(found) - set(planned(run, "all", "reference")) == lacking


def test_committed_measurements_do_not_change_where_what_is_made_of_them_is_made_again(run):
    made = ["scoring/Qwen3.8-27B.parquet", "goals.csv", "tables/wg_kv/latency.csv"]
    place = Path("results/reference/h200")
    for name in ("benchmarks/bench_scoring.csv", "profile/kernels.parquet", *made):
        for file in (place / name, Path(f"{place / name}.json")):
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, run / file)
    for name in ("scoring_rows", "latency_goals", "latency_tables"):
        shutil.copy(ROOT / f"workflow/scripts/{name}.py", run / "workflow/scripts")
    found = []
    for _ in range(2):
        done = snakemake(run, *(str(place / name) for name in made), "--forceall", "--rerun-incomplete")
        assert done.returncode == 0, done.stdout
        found.append({file: file.read_bytes() for file in (run / place).rglob("*") if file.is_file()})
    assert found[0] == found[1] and len(found[0]) > 2 * 5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--config", "tier=quik"], "tier: tier 'quik' is unknown; did you mean 'quick'?"),
        (
            ["--config", "experiments={gatesight: {methods: {it: {eviction: snapvk}}}}"],
            "eviction method 'snapvk' is unknown; did you mean 'snapkv'?",
        ),
        (["--config", "device=cuda"], "no CUDA GPU is visible"),
        (["latency"], "profile 'h200' needs a CUDA GPU, and this machine has none"),
    ],
    ids=["tier", "method", "device", "profile"],
)
def test_a_fault_is_told_before_any_job_starts(run, change, sentence):
    (run / "results/test/claims.csv").unlink()
    done = snakemake(run, *change)
    assert done.returncode == 1
    assert sentence in done.stdout and "Traceback" not in done.stdout
    assert not (run / "results/test/claims.csv").exists() and not (run / "results/quick").exists()


@pytest.mark.parametrize("profile", ["default", "h200", "slurm"])
def test_profiles_pass_a_dry_run(run, profile):
    found = planned(run, "--config", "tier=paper", "--workflow-profile", f"workflow/profiles/{profile}", "--forceall")
    assert found["benchmark_accuracy"] == 5 * 13 + 2 * 12 + 3 * 14 + 3
    assert found["budget_rows"] == 2 * (13 + 3 + 5) and found["ruler_8K_prompts"] == 2  # Appendix D at 8K


def test_lab_models_are_trained_by_their_own_target(run):
    found = planned(run, "lab_models")
    found.pop("lab_models")
    assert found == {"lab_data": 1} | dict.fromkeys(["lab_train", "lab_evaluate", "lab_export", "lab_card"], 4)


def test_scripts_named_in_rules_exist_and_no_other():
    named = set()
    for rules in (ROOT / "workflow/rules").glob("*.smk"):
        named.update(re.findall(r'"\.\./scripts/(\w+\.py)"', rules.read_text()))
    assert named == {p.name for p in (ROOT / "workflow/scripts").glob("*.py")}


def test_a_process_that_makes_rows_of_gate_training_may_import_its_script():
    runpy.run_path("workflow/scripts/write_gates.py", run_name="__mp_main__")  # there is no snakemake there


def test_a_toy_method_takes_one_file_and_one_line(run, tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(eviction, "__path__", [*eviction.__path__, str(tmp_path)])  # stands for the package's folder
    edit(run, experiments=methods(toy={"eviction": "toy"}))
    assert planned(run) == {"benchmark_accuracy": 4} | OF_ACCURACY | OF_SCBENCH
    assert snakemake(run).returncode == 0
    (tmp_path / "toy.py").write_text(TOY.replace("A toy", "Another toy"))
    assert planned(run) == {}
    (tmp_path / "toy.py").write_text(TOY.replace("= 1.0", "= 2.0"))
    assert planned(run)["benchmark_accuracy"] == 4


def test_a_stale_lock_is_removed_and_a_held_one_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = tmp_path / ".snakemake/locks/0.input.lock"
    for runs in (True, False):
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text("results")
        monkeypatch.setattr(locks, "held", lambda directory, runs=runs: runs)
        locks.main()
        assert lock.exists() == runs


def test_a_process_that_runs_snakemake_here_holds_the_lock(tmp_path):
    assert not locks.held(tmp_path)
    code = ["-c", "import time; time.sleep(30)", "snakemake"]
    with subprocess.Popen([sys.executable, *code], cwd=tmp_path) as process:
        try:
            assert locks.held(tmp_path) and not locks.held(tmp_path.parent)
        finally:
            process.kill()


def test_make_targets():
    def make(*arguments: str) -> str:
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True).stdout

    listed = [line.split()[0] for line in make().splitlines()]
    assert listed == ["help", "reproduce", "figures", "test", "lint"]
    planned = make("-n", "-B", "figures", "TIER=lab", "STACK=cuda")
    assert "-c envs/cuda.txt -e '.[dev,gpu]'" in planned
    assert "snakemake figures tables claims reference latency_reference --workflow-profile" in planned
    assert "tier=lab" in planned and "kvpress" not in planned
    assert "--no-deps -r envs/kvpress.txt" in make("-n", "-B", "test")
    assert "--cores all a.png" in make("-n", "-B", "reproduce", "TIER=lab", "ARGS=a.png")  # no value of --config


# The scripts


class Named(list):
    """A list whose entries may have names, as Snakemake's inputs, outputs and params."""

    def __init__(self, *plain, **named):
        super().__init__([*plain, *(x for v in named.values() for x in (v if isinstance(v, list) else [v]))])
        self.__dict__.update(named)

    def items(self):
        return self.__dict__.items()

    def keys(self):
        return self.__dict__.keys()

    def __getitem__(self, key):
        return self.__dict__[key] if isinstance(key, str) else super().__getitem__(key)


@pytest.fixture(scope="module")
def site(tmp_path_factory, tiny_hybrid_dir, tiny_dense_dir):
    models = {"lab-hybrid": tiny_hybrid_dir, "lab-dense": tiny_dense_dir}
    return checkout(tmp_path_factory.mktemp("scripts"), models, stubs=False)


@pytest.fixture
def script(site, monkeypatch):
    """Run a workflow script in this process with a ``snakemake`` object made by hand."""
    monkeypatch.chdir(site)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def call(name: str, inputs: Named, outputs: Named, params: dict, **wildcards: str) -> None:
        given = SimpleNamespace(
            rule=name,
            input=inputs,
            output=outputs,
            params=Named(**params),
            wildcards=SimpleNamespace(**wildcards),
            log=[f"logs/{name}.log"],
            threads=1,
            resources=SimpleNamespace(gpu=0),
            config=call.config,
        )
        runpy.run_path(f"workflow/scripts/{name}.py", init_globals={"snakemake": given}, run_name="__main__")

    call.config = kvrepro.config.load({"tier": "test"})
    return call


def test_scripts_from_prompts_to_claims(script, site):
    config, hybrid = script.config, {"model": "lab-hybrid"}
    ruler = config["benchmarks"]["ruler"] | {"tasks": ["qa_1"]}
    for model in ("lab-hybrid", "lab-dense"):
        made = Named(prompts=[f"{model}.jsonl"], manifest=f"{model}.csv")
        script("prompts", Named(), made, {"name": "ruler", "settings": ruler, "seed": 42}, model=model)
    assert len(pd.read_csv("lab-hybrid.csv")) == 2

    given = {k: v for k, v in config["labels"].items() if k != "corpora"}
    labels = [f"{corpus}.labels" for corpus in ("kjv", "stdlib")]
    for corpus, path in zip(("kjv", "stdlib"), labels, strict=True):
        script("labels", Named(), Named(path), {"settings": given, "entry": corpus}, corpus=corpus, **hybrid)
    calibration = {"settings": {"tokens": 200, "seed": 0}, "corpora": ["kjv", "stdlib"], "lengths": [48, 64]}
    script("query_statistics", Named(), Named("query_statistics"), calibration, **hybrid)
    recipe = {"recipe": config["estimators"]}
    trained = "results/test/estimators/lab-hybrid.parquet"
    script("estimators", Named(labels=labels), Named(estimators="estimators", rows=trained), recipe, **hybrid)
    assert read_rows(trained)["value"].item() > 0
    script("held_out_predictors", Named(labels=labels), Named("folds"), recipe, **hybrid)
    rows = "results/test/predictors/lab-hybrid.parquet"
    script(
        "predictor_rows",
        Named(labels=labels, folds=["folds"]),
        Named(rows=rows),
        {"settings": config["predictors"]},
        **hybrid,
    )
    assert set(read_rows(rows)["experiment"]) == {"predictors", "label_checks", "layer_gates", "example_document"}
    observed = "results/test/observations/lab-hybrid.parquet"
    sets = {"settings": given, "set": {"tokens": 64, "documents": 3}, "corpora": ["kjv", "stdlib"]}
    script("label_set", Named(), Named("0K.labels"), sets, set="0K", **hybrid)
    contexts = {"settings": given, "ruler": ruler | config["observations"]["ruler"], "seed": 42}
    script("label_tasks", Named(), Named("niah_single_1.labels", "qa_1.labels"), contexts, **hybrid)
    narrow = {"recipe": config["estimators"] | {"window": 2}}
    script("window_folds", Named(labels=labels), Named("narrow"), narrow, **hybrid)
    inputs = Named(labels=labels, estimators="estimators", folds=["folds"], windows=["narrow"], sets=["0K.labels"])
    inputs.tasks = ["niah_single_1.labels", "qa_1.labels"]
    settings = {"settings": config["observations"], "slow": 1000, "task_set": "ruler_0K"}
    script("observation_rows", inputs, Named(rows=observed), settings, **hybrid)
    found = read_rows(observed)
    assert {"shape", "half_lives", "order_stability", "deciles", "cells", "windows"} < set(found["experiment"])
    gated = [f"results/test/{name}.parquet" for name in ("gates/lab-hybrid", "budgets/qa_1", "budgets/niah_multivalue")]
    corpora = {"corpora": ["kjv", "stdlib"], "lengths": [48, 64]}
    script("gate_statistics", Named(), Named("gates"), corpora | {"documents": 1, "seed": 0}, **hybrid)
    settings = corpora | {"settings": config["gates"]}
    script("gate_rows", Named(gates=["gates"]), Named(rows=gated[0]), settings, **hybrid)
    ablation = {"name": "ruler", "settings": ruler | {"tasks": ["niah_multivalue"]}, "seed": 42}
    script("prompts", Named(), Named(prompts=["ablation.jsonl"], manifest="ablation.csv"), ablation, **hybrid)
    for task, prompts, path in (
        ("qa_1", "lab-hybrid.jsonl", gated[1]),
        ("niah_multivalue", "ablation.jsonl", gated[2]),
    ):
        inputs = Named(prompts=prompts, estimators="estimators", gates=["gates"])
        params = {"number": 1, "kept": [0.2], "rows": 4, "scorer": "ruler", "experiment": "budgets", "closing": True}
        where = {"benchmark": "ruler", "task": task}
        script("budget_rows", inputs, Named(rows=path), params, **where, **hybrid)
        assert read_rows(path)["ok"].all()

    dense = {"model": "lab-dense"}
    gates = config["write_gates"]
    for sweep, over, wanted in (
        ("write_gates", gates["recipe"] | {"together": 2}, ["0.08_0.64"]),
        ("no_local_cache", gates["recipe"] | gates["no_local_cache"] | {"lambdas": [0.64]}, ["0.64"]),
    ):
        settings, lambdas = kvrepro.config.gate_recipe("lab-dense", over)
        assert list(trained_together(lambdas, settings.get("together", 1))) == wanted
        parts = [Path(f"results/test/{sweep}/lab-dense/{name}") for name in wanted]
        parts[0].parent.mkdir(parents=True)  # as Snakemake does
        row_files = [f"{part}.parquet" for part in parts]
        provenance = [f"{path}.json" for path in row_files]
        files = [f"{part}.safetensors" for part in parts]
        for part, gate, row, about in zip(parts, files, row_files, provenance, strict=True):
            made = Named(gates=gate, rows=row, provenance=about, card=f"{part}.md")
            script("write_gates", Named(), made, {"recipe": settings}, lambdas=part.name, **dense)
            assert re.findall(r"λ = (.*)", Path(made.card).read_text()) == part.name.split("_")
        learned = f"results/test/{sweep}/lab-dense.parquet"
        made = Named(gates=sweep, rows=learned, provenance=f"{learned}.json")
        script("join_write_gates", Named(gates=files, rows=row_files, provenance=provenance), made, {}, **dense)
        about, part = (json.loads(Path(path).read_text()) for path in (f"{learned}.json", provenance[0]))
        assert all(about[key] == part[key] for key in ("hardware", "weights")) and set(about["inputs"]) == set(
            row_files
        )
    learned, no_local = (f"results/test/{sweep}/lab-dense.parquet" for sweep in ("write_gates", "no_local_cache"))
    found = read_rows(learned)
    lambdas = {json.loads(options)["lambda"] for options in found["options"]}
    assert lambdas == {0.08, 0.64} and set(found["model"]) == {"lab-dense"} and len(found) == 2 * (2 * 2 * 2 + 2)
    params = {"recipe": kvrepro.config.head_recipe("lab-dense", gates)}
    assert params["recipe"]["heads"]["steps"] == 2 and params["recipe"]["rows"]["lengths"] == {64: 1}
    script("head_profile", Named(), Named("head_profile"), params, **dense)

    patterns = "results/test/patterns/lab-dense.parquet"
    inputs = Named(gates="write_gates", of_qa_1="lab-dense.jsonl")
    script("pattern_rows", inputs, Named(rows=patterns), {"settings": config["patterns"]}, **dense)
    kinds = {"token_utility", "token_trace", "head_sizes", "cache_growth", "gate_identities"}
    assert set(read_rows(patterns)["experiment"]) == kinds

    experiments = config["experiments"]
    for model, paper, more in (
        ("lab-hybrid", "gatesight", {"triattention": {"eviction": "triattention"}}),
        ("lab-dense", "wg_kv", {}),
    ):
        named = running(experiments[paper]["methods"], "ruler") | more
        params = {"kept": experiments[paper]["kept"], "methods": named, "paper": paper}
        out = f"results/test/accuracy/{model}/ruler/qa_1.parquet"
        inputs = Named(model=[], prompts=f"{model}.jsonl", estimators="estimators")
        inputs.query_statistics = "query_statistics"
        inputs.write_gates, inputs.head_profile = "write_gates", "head_profile"
        script("accuracy", inputs, Named(rows=out), params, model=model, benchmark="ruler", task="qa_1")
        found = read_rows(out)
        assert found["ok"].all() and {m.split("@")[0] for m in found["method"]} == {"dense", "full", *named}
        assert set(found["paper"]) == {paper}
        assert {"wall_seconds", "weights", "params", "rule"} <= set(json.loads(Path(f"{out}.json").read_text()))

    stand_ins = config["benchmarks"]["scbench"] | {"tasks": ["many_shot"]}
    made = {"name": "scbench", "settings": stand_ins, "seed": 42}
    script("prompts", Named(), Named(prompts=["scbench.jsonl"], manifest="scbench.csv"), made, **hybrid)
    turns = "results/test/accuracy/lab-hybrid/scbench/many_shot.parquet"
    params = {"kept": [0.2], "methods": {"keydiff": {"eviction": "keydiff"}}, "paper": "gatesight"}
    inputs = Named(model=[], prompts="scbench.jsonl")
    script("accuracy", inputs, Named(rows=turns), params, benchmark="scbench", task="many_shot", **hybrid)
    found = read_rows(turns)
    assert found["ok"].all() and set(found["metric"]) == {"score", "official", "corrected"}
    assert set(found["experiment"]) == {"scbench"} and set(found["benchmark"]) == {"scbench_stand_in"}

    made = {"name": "helmet", "settings": config["benchmarks"]["helmet"], "seed": 42}
    script("prompts", Named(), Named(prompts=["helmet.jsonl"], manifest="helmet.csv"), made, model="lab-dense")
    labelled = "results/test/accuracy/lab-dense/helmet/trec_fine.parquet"
    params = {"kept": [0.2], "methods": running(experiments["wg_kv"]["methods"], "helmet"), "paper": "wg_kv"}
    inputs = Named(model=[], prompts="helmet.jsonl")
    inputs.write_gates, inputs.head_profile = "write_gates", "head_profile"
    script("accuracy", inputs, Named(rows=labelled), params, model="lab-dense", benchmark="helmet", task="trec_fine")
    assert set(read_rows(labelled)["metric"]) == {"score", "stopped_at_newline"}
    made = {"name": "reasoning", "settings": config["benchmarks"]["reasoning"], "seed": 42}
    script("prompts", Named(), Named(prompts=["reasoning.jsonl"], manifest="reasoning.csv"), made, **dense)
    reasoned = "results/test/accuracy/lab-dense/reasoning/registers.parquet"
    params = {"kept": [0.2], "methods": running(experiments["wg_kv"]["methods"], "reasoning"), "paper": "wg_kv"}
    inputs = Named(model=[], prompts="reasoning.jsonl")
    inputs.write_gates = "write_gates"
    script("accuracy", inputs, Named(rows=reasoned), params, benchmark="reasoning", task="registers", **dense)
    found = read_rows(reasoned)
    assert found["ok"].all() and set(found["metric"]) == {"score", "steps"}
    assert {m.split("@")[0] for m in found["method"]} == {"dense", "full", "wg_kv", "snapkv", "wg_kv+snapkv"}
    assert (found.loc[found["method"] == "snapkv@budget=64", "evictions"] > 0).all()

    for path, files in {
        trained: labels,
        rows: [*labels, "folds"],
        observed: ["estimators", *labels, "folds", "narrow", "0K.labels", "niah_single_1.labels", "qa_1.labels"],
        gated[0]: ["gates"],
        gated[1]: ["lab-hybrid.jsonl", "estimators", "gates"],
        patterns: ["write_gates", "lab-dense.jsonl"],
        turns: ["scbench.jsonl"],
        labelled: ["helmet.jsonl", "write_gates", "head_profile"],
    }.items():
        made_from = json.loads(Path(f"{path}.json").read_text())["inputs"]
        assert made_from == {file: sha256_file(file) for file in files}, path

    accuracy = "results/test/accuracy/lab-hybrid/ruler/qa_1.parquet"
    script("unpruned_accuracy", Named(ruler=[accuracy]), Named("accuracy.json"), {"lengths": {"ruler": 1000}}, **hybrid)
    record = json.loads(Path("accuracy.json").read_text())
    assert set(record) == {"ruler_1000", "mean", "items_per_task"} and record["items_per_task"] == 2
    both, lengths = Named(reasoning=[reasoned], ruler=[accuracy]), {"ruler": 1000, "reasoning": 640}
    script("unpruned_accuracy", both, Named("both.json"), {"lengths": lengths}, **hybrid)
    assert json.loads(Path("both.json").read_text()) == record | {"reasoning_640": {"registers": 0.0}}
    for kind, products in (("figure", FIGURES), ("table", TABLES)):
        for name, product in products.items():
            own = accuracy if "gatesight" in product.papers else "results/test/accuracy/lab-dense/ruler/qa_1.parquet"
            read = {
                "accuracy": [accuracy, turns],
                "ruler": [own],
                "scbench": [turns],
                "helmet": [labelled],
                "longproc": [labelled],  # in the same form
                "reasoning": [reasoned],
                "predictors": [rows],
                "observations": [rows, observed],
                "gates": gated,
                "write_gates": [learned],
                "local_cache": [learned, no_local],
                "patterns": [patterns],
                "primitives": [patterns, own],
                "goals": [learned, own, reasoned],
            }[product.reads]
            outputs = Named(pdf=f"{name}.pdf", png=f"{name}.png", csv=f"{name}.csv", md=f"{name}.md")
            measured = [str(ROOT / file) for file in product.measured]
            inputs = Named(rows=read, published=[]) if kind == "figure" else Named(rows=read, measured=measured)
            script(kind, inputs, outputs, {"name": name, "lab": True})
            assert Path(outputs.pdf if kind == "figure" else outputs.md).stat().st_size > 300

    (site / "config/claims").exists() or shutil.copytree(ROOT / "config/claims", site / "config/claims")
    script(
        "claims",
        Named(rows=[rows, accuracy, turns], reference=[]),
        Named(csv="claims.csv", md="claims.md"),
        {
            "models": {"test": {paper: experiment["models"] for paper, experiment in experiments.items()}},
            "lab": ["lab-hybrid", "lab-dense"],
            "commands": kvrepro.config.commands() | {"test": "make reproduce TIER=test", "h200": "snakemake latency"},
        },
    )
    for made in ("claims.csv", "ruler.csv"):
        record = json.loads(Path(f"{made}.json").read_text())
        assert record["config"] == config_hash(config) and record["params_hash"] == config_hash(record["params"])
        assert record["sha256"] == sha256_file(made) and accuracy in record["inputs"] and record["commit"]
    judged = pd.read_csv("claims.csv").set_index("claim_id")
    assert judged.loc["gs-app-b-closed-form", "verdict"] == "reproduced"
    assert "(lab-hybrid, lab model)" in Path("claims.md").read_text()


def test_a_pinned_file_is_fetched_into_its_folder(script, tmp_path):
    origin = tmp_path / "origin"
    origin.write_text("text")
    files = {f"{tmp_path}/data/a/b.csv": {"url": origin.as_uri(), "sha256": sha256_file(origin)}}
    script("download", Named(), Named(), {"files": files})
    assert (tmp_path / "data/a/b.csv").read_text() == "text"


def test_a_script_ends_with_one_sentence(script, capfd):
    path = Path("broken.parquet")
    path.write_bytes(b"PAR1")
    Path("broken.parquet.json").write_text('{"sha256": "0"}')
    with pytest.raises(SystemExit) as ended:
        script(
            "figure",
            Named(rows=str(path), published=[]),
            Named(pdf="x.pdf", png="x.png"),
            {"name": "figure_4b", "lab": True},
        )
    assert ended.value.code == 1 and not Path("x.pdf").exists()
    told = capfd.readouterr().err.strip()
    assert told.startswith("figure: broken.parquet is truncated or corrupt") and "\n" not in told
    assert "Traceback" not in Path("logs/figure.log").read_text()


def test_a_script_that_crashes_keeps_its_traceback_in_the_log(script, capfd):
    with pytest.raises(SystemExit):
        script("figure", Named(rows=[], published=[]), Named(), {"name": "figure_none", "lab": True})
    told = capfd.readouterr().err.strip()
    assert "KeyError" in told and "logs/figure.log" in told and "\n" not in told
    assert "Traceback" in Path("logs/figure.log").read_text()
