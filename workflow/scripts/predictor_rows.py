"""How every predictor ranks the entries of every labelled document, the example document, label checks and gates."""

import pandas as pd

from kvrepro.analysis.gates import gate_rows
from kvrepro.analysis.memory import slow_heads
from kvrepro.analysis.predictors import example_rows, predictor_rows
from kvrepro.estimators import folds
from kvrepro.labels.corpus import LabelledCorpus, check_rows
from kvrepro.models.geometry import Geometry
from kvrepro.results import checksums, write_rows
from kvrepro.script import job

with job(snakemake) as run:
    tier, settings = snakemake.config["tier"], snakemake.params.settings
    labelled = [LabelledCorpus(path) for path in snakemake.input.labels]
    meta = labelled[0].meta
    geometry = Geometry.from_dict(meta["geometry"])
    trained, about = folds.load(snakemake.input.folds[0], meta["fingerprint"], meta["geometry"])
    slow, window = slow_heads(labelled, settings["slow_threshold"]), about["recipe"]["window"]
    checks = [row for corpus in labelled for row in check_rows(corpus, tier)]
    parts = [
        predictor_rows(labelled, trained, geometry, slow, window, tier, settings["seed"]),
        example_rows(labelled, geometry, slow, window, tier, settings["seed"]),
        pd.DataFrame(checks),
        pd.DataFrame(gate_rows(labelled, tier)),
    ]
    inputs = checksums([*snakemake.input.labels, *snakemake.input.folds])
    about = run.provenance(weights=meta["fingerprint"], inputs=inputs)
    write_rows(pd.concat(parts, ignore_index=True), snakemake.output.rows, about)
