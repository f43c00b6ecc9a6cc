"""Profile jobs by the files they make: one job for each protocol, or one of a sweep."""

from kvrepro.profiling import run as profiling
from kvrepro.profiling.measure import Bench
from kvrepro.profiling.rows import write
from kvrepro.profiling.settings import load
from kvrepro.script import job

with job(snakemake) as run:
    settings = load(snakemake.params.name)
    bench = Bench(settings.profile)
    jobs = {task.file: task for task in profiling.jobs_of(settings)}
    for path in snakemake.output.rows:
        task = jobs[path.split("/profile/")[1]]
        rows = profiling.run_job(settings, task, bench, settings.profile.seconds)
        write(rows, path, run.provenance(bench.device))
