"""The networks of one model with another window, each trained with one corpus left out."""

from kvrepro.estimators import folds
from kvrepro.labels.corpus import LabelledCorpus
from kvrepro.models.geometry import Geometry
from kvrepro.script import job
from kvrepro.training.estimators import Recipe, held_out

with job(snakemake):
    labelled = [LabelledCorpus(path) for path in snakemake.input.labels]
    meta, recipe = labelled[0].meta, dict(snakemake.params.recipe)
    geometry, device = Geometry.from_dict(meta["geometry"]), snakemake.config["device"]
    found = held_out(labelled, geometry, Recipe(**recipe), device, names=("mlp",))
    about = {key: meta[key] for key in ("model", "fingerprint", "geometry")}
    folds.save(snakemake.output[0], found, about | {"recipe": recipe})
