"""The estimators of one model, trained on all its labelled corpora."""

from kvrepro.labels.corpus import LabelledCorpus
from kvrepro.models.geometry import Geometry
from kvrepro.results import checksums, hardware, write_rows
from kvrepro.script import job
from kvrepro.training.cost import cost_rows
from kvrepro.training.estimators import Recipe, train

with job(snakemake) as run:
    device = snakemake.config["device"]
    labelled = [LabelledCorpus(path) for path in snakemake.input.labels]
    geometry = Geometry.from_dict(labelled[0].meta["geometry"])
    recipe = Recipe(**snakemake.params.recipe)
    made = train(labelled, geometry, recipe, device)
    made.save(snakemake.output.estimators)
    where = {"paper": "gatesight", "tier": snakemake.config["tier"], "model": made.model}
    rows = cost_rows("estimators", {"seconds": made.seconds}, made.recipe, hardware(device), **where)
    write_rows(rows, snakemake.output.rows, run.provenance(device, inputs=checksums(snakemake.input.labels)))
