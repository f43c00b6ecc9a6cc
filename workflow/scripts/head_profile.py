"""Which heads of one model need the whole cache, for DuoAttention."""

from kvrepro.script import job
from kvrepro.training.gates.heads import identify_from
from kvrepro.training.gates.train import load_for_training

with job(snakemake) as run:
    lm = load_for_training(snakemake.wildcards.model, snakemake.config["device"])
    params = snakemake.params
    identify_from(lm, snakemake.input.recipe, params.over, params.rows).save(snakemake.output[0], lm)
