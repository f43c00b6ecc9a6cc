"""The data sets of HELMET that can be fetched file by file."""

from pathlib import Path

from kvrepro.benchmarks.downloads import fetch
from kvrepro.benchmarks.helmet.definitions import DOWNLOADS
from kvrepro.script import job

with job(snakemake):
    fetch(DOWNLOADS, Path(snakemake.output[0]).parents[1])
