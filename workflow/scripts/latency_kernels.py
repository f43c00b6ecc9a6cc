"""Kernels and ceilings of a profile; of the profile for CPUs the end-to-end jobs as well."""

from kvrepro.profiling import run as profiling
from kvrepro.profiling.settings import load
from kvrepro.script import job

with job(snakemake) as run:
    settings = load(snakemake.params.name)
    profiling.prepare(settings.profile)  # before a kernel is imported
    from kvrepro.profiling.kernels import profile_kernels
    from kvrepro.profiling.measure import Bench
    from kvrepro.profiling.rows import write

    bench = Bench(settings.profile)
    rows = profile_kernels(settings, bench)
    if settings.profile.device == "cpu":
        for task in profiling.jobs_of(settings, ["*/prefill-*", "*/decode-*"]):
            rows += profiling.run_job(settings, task, bench, settings.profile.seconds)
    write(rows, snakemake.output.rows, run.provenance(bench.device))
