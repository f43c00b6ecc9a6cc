"""One table as CSV and Markdown."""

from pathlib import Path

from kvrepro.products import TABLES
from kvrepro.results import atomic, read_rows, write_text
from kvrepro.script import job

with job(snakemake):
    make = TABLES[snakemake.params.name].make
    frame, text = make(read_rows(snakemake.input), lab=snakemake.params.lab)
    with atomic(Path(snakemake.output.csv)) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")
    write_text(text, snakemake.output.md)
