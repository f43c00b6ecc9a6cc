"""Answers of one model to one RULER task under every method and kept fraction."""

from tqdm import tqdm

from kvrepro.benchmarks import ruler
from kvrepro.evaluate.arms import admission_arms, eviction_arms
from kvrepro.evaluate.protocol import evaluate
from kvrepro.models.loading import load
from kvrepro.results import write_rows
from kvrepro.script import job

with job(snakemake) as run:
    device, tables = snakemake.config["device"], snakemake.params.tables
    lm = load(snakemake.wildcards.model, device)
    artifacts = {field: path for field, path in snakemake.input.items() if field not in ("model", "prompts")}
    arms = eviction_arms(tables["eviction"], snakemake.params.kept, lm, artifacts)
    arms += admission_arms(tables["admission"], snakemake.params.kept)
    base = {
        "paper": "gatesight" if tables["eviction"] else "wg_kv",
        "experiment": "ruler",
        "tier": snakemake.config["tier"],
    }
    examples = ruler.read_prompts(snakemake.input.prompts)
    rows = list(evaluate(lm, tqdm(examples, desc=snakemake.wildcards.task), arms, ruler.score, base))
    write_rows(rows, snakemake.output.rows, run.provenance(device, weights=lm.fingerprint))
