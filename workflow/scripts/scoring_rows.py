"""Tidy rows of the scoring cost, model by model, from the benchmark's file."""

import json
from pathlib import Path

from kvrepro.profiling import scoring
from kvrepro.results import write_rows
from kvrepro.script import job

with job(snakemake) as run:
    csv = snakemake.input.csv
    found, made = scoring.read(csv), json.loads(Path(f"{csv}.json").read_text())
    about = run.provenance() | {"hardware": made["hardware"], "benchmark": made}
    for shape, path in zip(scoring.load().shapes.values(), snakemake.output.rows, strict=True):
        write_rows(scoring.rows_of(found, shape, snakemake.wildcards.place), path, about)
