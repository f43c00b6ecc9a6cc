"""One table as CSV and Markdown."""

import pandas as pd

from kvrepro.products import TABLES
from kvrepro.results import checksums, read_rows, write_table, write_text
from kvrepro.script import job

with job(snakemake) as run:
    make, measured = TABLES[snakemake.params.name].make, list(map(pd.read_csv, snakemake.input.measured))
    more = {"measured": measured} if measured else {}
    frame, text = make(read_rows(snakemake.input.rows), lab=snakemake.params.lab, **more)
    write_table(frame, snakemake.output.csv, run.provenance(inputs=checksums(snakemake.input)))
    write_text(text, snakemake.output.md)
