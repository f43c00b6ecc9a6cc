"""One figure of the profile as PDF and PNG."""

from kvrepro.figures import style
from kvrepro.products import PROFILE_FIGURES
from kvrepro.profiling.settings import load
from kvrepro.results import read_rows
from kvrepro.script import job

with job(snakemake):
    make = PROFILE_FIGURES[snakemake.params.name].make
    figure = make(read_rows(snakemake.input.rows), load(snakemake.params.profile))
    style.save(figure, snakemake.output.pdf, snakemake.output.png)
