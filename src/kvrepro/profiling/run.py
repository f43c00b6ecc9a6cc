"""Run a profile, or part of it, in order of importance within a time budget. Jobs whose file exists are not run again.

python -m kvrepro.profiling.run --profile h200 --out results/h200/profile --budget 600
python -m kvrepro.profiling.run --profile h200 --plan
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kvrepro.errors import InputError, command_line
from kvrepro.profiling.estimate import expected_seconds
from kvrepro.profiling.settings import Job, Profile, Settings, batches, end_to_end, load, sweeps

KERNELS = "kernels.parquet"
MARGIN = 5.0  # seconds of a budget that are left for writing


def jobs_of(settings: Settings, patterns: Iterable[str] = ("*",)) -> list[Job]:
    """The jobs whose file matches one of ``patterns``, in the order of the patterns and then of importance."""
    every = [*end_to_end(settings.profile), *sweeps(settings.profile), *batches(settings.profile)]
    return list(dict.fromkeys(job for pattern in patterns for job in every if fnmatch(job.file, pattern)))


def shard(settings: Settings, jobs: list[Job], index: int, number: int) -> list[Job]:
    """The jobs of the GPU ``index`` of ``number`` that work side by side, in their order.

    Jobs whose values are divided by each other (methods, kept fractions, windows, batches) stay together. Groups go,
    the longest first, to the GPU that is done earliest.
    """
    groups: dict[tuple, list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.experiment, job.model, job.phase, job.tokens, job.protocol), []).append(job)
    seconds = {
        key: sum(expected_seconds(settings.shapes[job.model], job, settings.profile) for job in group)
        for key, group in groups.items()
    }
    load, mine = [0.0] * number, set()
    for key in sorted(groups, key=seconds.get, reverse=True):
        place = load.index(min(load))
        load[place] += seconds[key]
        if place == index:
            mine.update(groups[key])
    return [job for job in jobs if job in mine]


def require_device(profile: Profile) -> None:
    """InputError when the profile's device is not there."""
    import torch

    if profile.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"profile {profile.name!r} needs a CUDA GPU, and this machine has none; run it on a GPU node.")


def prepare(profile: Profile) -> None:
    """Check the device, and on a CPU have Triton interpret kernels, which works before they are imported only."""
    require_device(profile)
    if profile.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


def run_job(settings: Settings, job: Job, bench: Any, seconds: float) -> list[dict[str, Any]]:
    """Rows of a job, timed within about ``seconds``."""
    from kvrepro.profiling.measure import measure
    from kvrepro.profiling.rows import job_rows

    shape = settings.shapes[job.model]
    return job_rows(settings.profile, shape, job, measure(bench, shape, job, seconds))


def _place(text: str) -> tuple[int, int]:
    """The GPU and the number of GPUs that ``--shard I/N`` names."""
    index, slash, number = text.partition("/")
    if not (slash and index.isdecimal() and number.isdecimal() and int(index) < int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is no I/N with I from 0 to N - 1")
    return int(index), int(number)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h200", help="a profile of config/latency.yaml")
    parser.add_argument("--out", type=Path, default=Path("results/profile"), help="folder of the rows")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of job files, most important first")
    parser.add_argument("--kernels", action="store_true", help="time the kernels and ceilings first")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for everything")
    parser.add_argument("--job-seconds", type=float, help="seconds of one job's passes, in place of the profile's")
    parser.add_argument("--shard", type=_place, help="I/N: the jobs of GPU I (from 0) of N that work side by side")
    parser.add_argument("--commit", help="commit of the sources, for the provenance where they lie without git")
    parser.add_argument("--plan", action="store_true", help="print the jobs and their expected seconds, run nothing")
    options = parser.parse_args(arguments)
    settings = load(options.profile)
    jobs = jobs_of(settings, options.only)
    if not jobs:
        raise InputError(f"no job of profile {options.profile!r} matches {options.only}; --plan prints all of them.")
    if options.shard:
        jobs = shard(settings, jobs, *options.shard)
    if options.plan:
        for job in jobs:
            print(f"{expected_seconds(settings.shapes[job.model], job, settings.profile):7.1f} s  {job.file}")
        return
    try:
        prepare(settings.profile)
    except InputError as error:
        parser.error(str(error))
    _run(settings, jobs, options)


def _run(settings: Settings, jobs: list[Job], options: argparse.Namespace) -> None:
    from kvrepro.profiling.kernels import profile_kernels
    from kvrepro.profiling.measure import Bench
    from kvrepro.profiling.rows import write
    from kvrepro.results import provenance

    started = time.monotonic()
    bench = Bench(settings.profile)

    def save(rows: list[dict], path: Path, began: float) -> None:
        about = provenance({"profile": settings.profile.name}, bench.device, wall_seconds=time.monotonic() - began)
        about |= {"commit": options.commit} if options.commit else {}
        write(rows, path, about)
        print(f"{time.monotonic() - started:6.0f} s  {path.name}: {_line(rows)}", flush=True)

    if options.kernels and not (options.out / KERNELS).exists():
        began = time.monotonic()
        save(profile_kernels(settings, bench), options.out / KERNELS, began)
    for job in jobs:
        left = options.budget - (time.monotonic() - started) - MARGIN
        path, shape = options.out / job.file, settings.shapes[job.model]
        if path.exists():
            continue
        fixed = expected_seconds(shape, job, settings.profile, layers=1)
        if fixed > left:
            print(f"{time.monotonic() - started:6.0f} s  {job.file}: not run, {left:.0f} s are left", flush=True)
            continue
        began = time.monotonic()
        seconds = min(options.job_seconds or settings.profile.seconds, left - fixed)
        save(run_job(settings, job, bench, seconds), path, began)


def _line(rows: list[dict]) -> str:
    """The totals of a job in words."""
    shown = [r for r in rows if r["metric"] == "seconds"]
    first = rows[0]
    values = ", ".join(f"{r['component' if r['protocol'] != 'kernel' else 'task']} {r['value']:.5g} s" for r in shown)
    return f"{values}; {first['layers_timed']} of {first['layers']} layers; {first['timing']}{first['reason']}"


if __name__ == "__main__":
    command_line(main)
