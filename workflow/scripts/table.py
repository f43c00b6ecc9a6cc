"""One table as CSV and Markdown."""

from kvrepro.products import TABLES
from kvrepro.results import checksums, read_rows, write_table, write_text
from kvrepro.script import job

with job(snakemake) as run:
    make = TABLES[snakemake.params.name].make
    frame, text = make(read_rows(snakemake.input), lab=snakemake.params.lab)
    write_table(frame, snakemake.output.csv, run.provenance(inputs=checksums(snakemake.input)))
    write_text(text, snakemake.output.md)
