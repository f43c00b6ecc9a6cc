"""Files that are published elsewhere, each with its pinned checksum."""

from kvrepro.downloads import fetch
from kvrepro.script import job

with job(snakemake):
    fetch(snakemake.params.files)
