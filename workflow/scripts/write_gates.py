"""Write gates of one model for some lambdas that train together, and their losses on held-out rows."""

import shutil
from pathlib import Path

from kvrepro.script import job
from kvrepro.training.gates.recipe import GateRecipe
from kvrepro.training.gates.train import CARD, GATES, ROWS, load_for_training, train_each

if __name__ == "__main__":  # the processes that make rows import this file, too
    with job(snakemake) as run:
        device, tier = snakemake.config["device"], snakemake.config["tier"]
        lm = load_for_training(snakemake.wildcards.model, device)
        recipe = GateRecipe.from_settings(snakemake.params.recipe)
        lambdas = [float(trade_off) for trade_off in snakemake.wildcards.lambdas.split("_")]
        out = Path("build/write_gates") / tier / f"{lm.name}-{recipe.identity(lm.fingerprint)}"
        provenance = run.provenance(device, weights=lm.fingerprint)
        (folder,) = train_each(lm, recipe, lambdas, out, tier, provenance, workers=snakemake.threads - 1)
        shutil.copyfile(folder / GATES, snakemake.output.gates)
        shutil.copyfile(folder / ROWS, snakemake.output.rows)
        shutil.copyfile(folder / f"{ROWS}.json", snakemake.output.provenance)
        shutil.copyfile(folder / CARD, snakemake.output.card)
