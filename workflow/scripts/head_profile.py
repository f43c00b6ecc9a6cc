"""Which heads of one model need the whole cache, for DuoAttention."""

from kvrepro.script import job
from kvrepro.training.gates.heads import identify_from
from kvrepro.training.gates.recipe import GateRecipe, HeadRecipe
from kvrepro.training.gates.train import load_for_training

with job(snakemake) as run:
    lm = load_for_training(snakemake.wildcards.model, snakemake.config["device"])
    heads, rows = (snakemake.params.recipe[key] for key in ("heads", "rows"))
    gates = GateRecipe.from_settings(rows) if rows else None
    identify_from(lm, HeadRecipe.from_settings(heads), gates).save(snakemake.output[0], lm)
