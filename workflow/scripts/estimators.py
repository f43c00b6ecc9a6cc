"""The estimators of one model, trained on all its labelled corpora."""

from kvrepro.labels.corpus import LabelledCorpus
from kvrepro.models.geometry import Geometry
from kvrepro.script import job
from kvrepro.training.estimators import Recipe, train

with job(snakemake):
    labelled = [LabelledCorpus(path) for path in snakemake.input.labels]
    geometry = Geometry.from_dict(labelled[0].meta["geometry"])
    recipe = Recipe(**snakemake.params.recipe)
    train(labelled, geometry, recipe, snakemake.config["device"]).save(snakemake.output[0])
