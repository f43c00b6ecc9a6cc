"""Goals of both papers' kernels, each with what was measured."""

import pandas as pd

from kvrepro.profiling import scoring
from kvrepro.profiling.settings import load
from kvrepro.results import checksums, read_rows, write_table
from kvrepro.script import job
from kvrepro.tables.goals import goals
from kvrepro.tables.scoring import scoring_goals

with job(snakemake) as run:
    rows = read_rows(snakemake.input.rows)
    found = [goals(rows, load(snakemake.params.profile)), scoring_goals(rows, scoring.load())]
    about = run.provenance(inputs=checksums(snakemake.input.rows))
    write_table(pd.concat(found, ignore_index=True), snakemake.output.goals, about)
