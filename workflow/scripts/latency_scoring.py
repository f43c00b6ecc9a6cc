"""The benchmark of the scoring cost on this machine's GPU."""

from kvrepro.profiling.bench_scoring import main
from kvrepro.script import job

with job(snakemake):
    main(["--out", snakemake.output.csv, "--seconds", str(snakemake.params.seconds)])
