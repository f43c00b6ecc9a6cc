"""Tidy rows of the scoring cost, model by model, from the benchmark's file, and counts that follow from the shapes."""

import json
from pathlib import Path

from kvrepro.analysis.shape import derived_rows
from kvrepro.profiling import scoring
from kvrepro.profiling.scoring_inputs import geometry
from kvrepro.results import write_rows
from kvrepro.script import job

with job(snakemake) as run:
    csv, place, settings = snakemake.input.csv, snakemake.wildcards.place, scoring.load()
    found, made = scoring.read(csv), json.loads(Path(f"{csv}.json").read_text())
    about = run.provenance() | {"hardware": made["hardware"], "benchmark": made}
    outputs = zip(snakemake.output.rows, snakemake.output.shapes, strict=True)
    for shape, (rows, counts) in zip(settings.shapes.values(), outputs, strict=True):
        write_rows(scoring.rows_of(found, shape, place), rows, about)
        derived = derived_rows(geometry(shape), **settings.estimators, model=shape.name, tier=place)
        write_rows(derived, counts, about)
