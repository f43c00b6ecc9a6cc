"""One figure as PDF and PNG."""

from kvrepro.figures import style
from kvrepro.products import FIGURES
from kvrepro.results import read_rows
from kvrepro.script import job

with job(snakemake):
    make = FIGURES[snakemake.params.name].make
    style.save(make(read_rows(snakemake.input), lab=snakemake.params.lab), snakemake.output.pdf, snakemake.output.png)
