"""One figure of the profile as PDF and PNG."""

from kvrepro.figures import style
from kvrepro.figures.latency import FIGURES
from kvrepro.profiling.settings import load
from kvrepro.results import read_rows
from kvrepro.script import job

with job(snakemake):
    make = FIGURES[snakemake.params.name]
    figure = make(read_rows(snakemake.input), load(snakemake.params.profile))
    style.save(figure, snakemake.output.pdf, snakemake.output.png)
