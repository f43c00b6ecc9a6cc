"""Answers of one model to one RULER task under every method and kept fraction."""

from tqdm import tqdm

from kvrepro.benchmarks import ruler
from kvrepro.evaluate.arms import arms
from kvrepro.evaluate.protocol import evaluate
from kvrepro.models.loading import load
from kvrepro.results import write_rows
from kvrepro.script import job

with job(snakemake) as run:
    device, params = snakemake.config["device"], snakemake.params
    lm = load(snakemake.wildcards.model, device)
    artifacts = {field: path for field, path in snakemake.input.items() if field not in ("model", "prompts")}
    made = arms(params.methods, params.kept, f"experiments.{params.paper}.methods", lm, artifacts)
    base = {"paper": params.paper, "experiment": "ruler", "tier": snakemake.config["tier"]}
    examples = ruler.read_prompts(snakemake.input.prompts)
    rows = list(evaluate(lm, tqdm(examples, desc=snakemake.wildcards.task), made, ruler.score, base))
    write_rows(rows, snakemake.output.rows, run.provenance(device, weights=lm.fingerprint))
