"""Answers of one model to one task under other budgets and, on RULER, with attention layers closed."""

from functools import partial

from kvrepro.analysis.budgets import budget_arms, budget_rows
from kvrepro.benchmarks.prompts import read_prompts
from kvrepro.benchmarks.registry import benchmark
from kvrepro.evaluate.resume import finished, resumed
from kvrepro.models.loading import load
from kvrepro.results import checksums, write_rows
from kvrepro.script import job

with job(snakemake) as run:
    device, given, params = snakemake.config["device"], snakemake.input, snakemake.params
    lm = load(snakemake.wildcards.model, device)
    arms = budget_arms(lm, given.estimators, given.gates[0], params.kept, params.rows)
    examples = read_prompts(given.prompts)[: params.number]
    base = {"paper": "gatesight", "tier": snakemake.config["tier"]}
    begun = run.unfinished(given)
    how = {"score": benchmark(params.scorer).score, "experiment": params.experiment, "closing": params.closing}
    asked = partial(budget_rows, lm, arms=arms, base=base, **how)
    rows = resumed(begun, examples, asked, snakemake.wildcards.task)
    inputs = checksums([given.prompts, given.estimators, *given.gates])
    write_rows(rows, snakemake.output.rows, run.provenance(device, weights=lm.fingerprint, inputs=inputs))
    finished(begun)
