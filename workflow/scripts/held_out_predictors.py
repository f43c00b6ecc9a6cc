"""Learned predictors of one model, each trained with one corpus left out."""

from kvrepro.estimators import folds
from kvrepro.labels.corpus import LabelledCorpus
from kvrepro.models.geometry import Geometry
from kvrepro.script import job
from kvrepro.training.estimators import Recipe, held_out

with job(snakemake):
    labelled = [LabelledCorpus(path) for path in snakemake.input.labels]
    meta = labelled[0].meta
    recipe = Recipe(**snakemake.params.recipe)
    found = held_out(labelled, Geometry.from_dict(meta["geometry"]), recipe, snakemake.config["device"])
    about = {key: meta[key] for key in ("model", "fingerprint", "geometry")}
    folds.save(snakemake.output[0], found, about | {"recipe": dict(snakemake.params.recipe)})
