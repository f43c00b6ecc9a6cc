"""Where the time of an eager decode step goes: on the host, or on the device.

``python -m kvrepro.profiling.bench_eager --out FILE.csv``. Steps of both methods in the paper's protocol, with a
context so short that reading it takes the device no time. Where the calls of a step take the host as long as the whole
step, launches bound it, and no kernel can make it faster. The functions that take the host most are listed beside it,
as Python's profiler counts them, which slows them down.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from kvrepro.errors import InputError, command_line
from kvrepro.profiling.run import prepare
from kvrepro.profiling.settings import METHODS, Job, Settings, load

COLUMNS = ["method", "tokens", "what", "calls", "milliseconds"]  #: per step
WARM, STEPS, SHOWN = 5, 40, 12


def rows(settings: Settings, tokens: int, steps: int = STEPS) -> Iterator[dict[str, Any]]:
    """Rows of the columns COLUMNS for both methods on the profile's first model after ``tokens`` random entries.

    ``step`` is a whole step and ``host`` the time until its last call has returned, by the wall clock; ``gate`` and
    ``attention`` are spans between CUDA events; what has a dot in its name is a function and its own time.
    """
    from kvrepro.profiling.measure import Bench, running  # imports kernels, which `prepare` comes before

    profile = settings.profile
    shape, bench = settings.shapes[profile.models[0]], Bench(profile)
    layers, end = range(shape.layers), torch.cuda.synchronize if profile.device == "cuda" else (lambda: None)
    for method in METHODS:
        kept = profile.kept if method == "wg_kv" else 1.0
        job = Job("end_to_end", shape.name, "decode", tokens, method, "paper", kept, profile.window)
        bench.weights(shape, "paper")
        with running(bench, shape, job, tokens + WARM + 2 * steps, layers, layers) as (clock, _, runner):
            token = torch.zeros(1, dtype=torch.long, device=profile.device)

            def several(count: int, runner=runner, token=token) -> None:
                for _ in range(count):
                    runner.step(token)

            several(WARM)
            end()
            clock.seconds()
            begun = time.perf_counter()
            several(steps)
            host = time.perf_counter() - begun
            end()
            spans = {"step": time.perf_counter() - begun, "host": host} | clock.seconds()
            profiler = cProfile.Profile()
            profiler.runcall(several, steps)
        row = {"method": method, "tokens": tokens}
        for what, seconds in spans.items():
            yield row | {"what": what, "calls": 1, "milliseconds": 1e3 * seconds / steps}
        own = {name: (calls, seconds) for name, (_, calls, seconds, _, _) in pstats.Stats(profiler).stats.items()}
        for (file, line, name), (calls, seconds) in sorted(own.items(), key=lambda item: -item[1][1])[:SHOWN]:
            what = f"{Path(file).stem}.{name}:{line}" if file != "~" else f"builtin.{name.strip('<>{}')}"
            yield row | {"what": what, "calls": calls / steps, "milliseconds": 1e3 * seconds / steps}


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h200", help="a profile of config/latency.yaml")
    parser.add_argument("--tokens", type=int, default=16384, help="entries of the cache")
    parser.add_argument("--out", type=Path, help="CSV file of the rows")
    options = parser.parse_args(arguments)
    if options.tokens < 1:
        parser.error("--tokens must be at least 1.")
    settings = load(options.profile)
    try:
        prepare(settings.profile)
    except InputError as error:
        parser.error(str(error))
    found = pd.DataFrame(rows(settings, options.tokens), columns=COLUMNS)
    print(found.to_string(index=False, float_format=lambda x: f"{x:.4g}"))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        found.to_csv(options.out, index=False)


if __name__ == "__main__":
    command_line(main)
