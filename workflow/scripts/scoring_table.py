"""Table 2 or 8: scoring cost, published and ours."""

from kvrepro.products import SCORING_TABLES
from kvrepro.profiling import scoring
from kvrepro.results import checksums, read_rows, write_table, write_text
from kvrepro.script import job

with job(snakemake) as run:
    rows = read_rows(snakemake.input) if snakemake.input else scoring.no_rows()
    frame, text = SCORING_TABLES[snakemake.params.name].make(rows, scoring.load())
    write_table(frame, snakemake.output.csv, run.provenance(inputs=checksums(snakemake.input)))
    write_text(text, snakemake.output.md)
