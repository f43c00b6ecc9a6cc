"""Answers of one model to one task of a benchmark under every method and kept fraction."""

from functools import partial

from kvrepro.benchmarks.prompts import read_prompts
from kvrepro.benchmarks.registry import benchmark
from kvrepro.evaluate.arms import arms
from kvrepro.evaluate.protocol import evaluate
from kvrepro.evaluate.resume import finished, resumed
from kvrepro.models.loading import load
from kvrepro.results import checksums, write_rows
from kvrepro.script import job

with job(snakemake) as run:
    device, params, name = snakemake.config["device"], snakemake.params, snakemake.wildcards.benchmark
    lm = load(snakemake.wildcards.model, device)
    artifacts = {field: path for field, path in snakemake.input.items() if field not in ("model", "prompts")}
    made = arms(params.methods, params.kept, f"experiments.{params.paper}.methods", lm, artifacts)
    base = {"paper": params.paper, "experiment": name, "tier": snakemake.config["tier"]}
    examples = read_prompts(snakemake.input.prompts)
    begun = run.unfinished(snakemake.input)
    asked = partial(evaluate, lm, arms=made, score=benchmark(name).score, base=base)
    rows = resumed(begun, examples, asked, snakemake.wildcards.task)
    given = checksums([snakemake.input.prompts, *artifacts.values()])
    write_rows(rows, snakemake.output.rows, run.provenance(device, weights=lm.fingerprint, inputs=given))
    finished(begun)
