"""All ratios of the profile."""

from kvrepro.profiling.settings import load
from kvrepro.results import checksums, read_rows, write_table, write_text
from kvrepro.script import job
from kvrepro.tables.goals import ratio_table

with job(snakemake) as run:
    frame, text = ratio_table(read_rows(snakemake.input), load(snakemake.params.profile))
    write_table(frame, snakemake.output.ratios, run.provenance(inputs=checksums(snakemake.input)))
    write_text(text, snakemake.output.md)
