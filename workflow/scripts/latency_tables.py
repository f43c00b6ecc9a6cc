"""Goals and all ratios of the profile."""

from kvrepro.profiling.settings import load
from kvrepro.results import checksums, read_rows, write_table, write_text
from kvrepro.script import job
from kvrepro.tables.goals import goals, ratio_table

with job(snakemake) as run:
    rows, settings = read_rows(snakemake.input), load(snakemake.params.profile)
    about = run.provenance(inputs=checksums(snakemake.input))
    write_table(goals(rows, settings), snakemake.output.goals, about)
    frame, text = ratio_table(rows, settings)
    write_table(frame, snakemake.output.ratios, about)
    write_text(text, snakemake.output.md)
