"""One figure as PDF and PNG."""

from kvrepro.analysis import published
from kvrepro.figures import style
from kvrepro.products import FIGURES
from kvrepro.results import read_rows
from kvrepro.script import job

with job(snakemake):
    make, plotted = FIGURES[snakemake.params.name].make, snakemake.input.published
    more = {"published": published.read(plotted)} if plotted else {}
    figure = make(read_rows(snakemake.input.rows), lab=snakemake.params.lab, **more)
    style.save(figure, snakemake.output.pdf, snakemake.output.png)
