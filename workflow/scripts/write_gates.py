"""Write gates of one model for every lambda of its recipe, and their losses on held-out rows."""

import shutil
from pathlib import Path

from kvrepro.script import job
from kvrepro.training.gates.recipe import GateRecipe
from kvrepro.training.gates.train import GATES, load_for_training, sweep

if __name__ == "__main__":  # the processes that make rows import this file, too
    with job(snakemake) as run:
        device, tier = snakemake.config["device"], snakemake.config["tier"]
        lm = load_for_training(snakemake.wildcards.model, device)
        recipe, lambdas = GateRecipe.read(snakemake.input.recipe, snakemake.params.over)
        folder = Path("build/write_gates") / tier / f"{lm.name}-{recipe.identity(lm.fingerprint)}"
        provenance = run.provenance(device, weights=lm.fingerprint)
        sweep(lm, recipe, lambdas, folder, tier, provenance, workers=snakemake.threads - 1)
        shutil.copyfile(folder / GATES, snakemake.output.gates)
        shutil.copyfile(folder / "validation.parquet", snakemake.output.rows)
        shutil.copyfile(folder / "validation.parquet.json", snakemake.output.provenance)
