"""Answers of one model to one RULER task under other budgets and with attention layers closed."""

from tqdm import tqdm

from kvrepro.analysis.budgets import budget_arms, budget_rows
from kvrepro.benchmarks.prompts import read_prompts
from kvrepro.benchmarks.registry import benchmark
from kvrepro.models.loading import load
from kvrepro.results import write_rows
from kvrepro.script import job

with job(snakemake) as run:
    device, given, params = snakemake.config["device"], snakemake.input, snakemake.params
    lm = load(snakemake.wildcards.model, device)
    arms = budget_arms(lm, given.estimators[0], given.gates[0], params.kept, params.rows)
    examples = read_prompts(given.prompts)[: params.number]
    base = {"paper": "gatesight", "tier": snakemake.config["tier"]}
    made = budget_rows(lm, examples, arms, benchmark("ruler").score, base)
    rows = list(tqdm(made, desc=snakemake.wildcards.task, unit="answer"))
    write_rows(rows, snakemake.output.rows, run.provenance(device, weights=lm.fingerprint))
