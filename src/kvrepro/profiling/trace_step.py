"""Which kernels a decode step spends its time in, for both methods and protocols, as torch's profiler sees them.

``python -m kvrepro.profiling.trace_step --out FILE.csv``. In the paper's protocol steps run eagerly, in the strongest
baseline as a CUDA graph. The wall time of a step is taken before the profiler starts, which slows the host down.
``busy`` is the time during which at least one kernel ran; the device waited for the rest of the wall time.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from kvrepro.errors import InputError, command_line, unknown
from kvrepro.profiling.run import prepare
from kvrepro.profiling.settings import METHODS, PROTOCOLS, Job, Settings, load
from kvrepro.results import provenance, write_table

COLUMNS = ["method", "protocol", "tokens", "kernel", "category", "calls", "microseconds"]  #: per step
#: Categories and what their kernels' names contain, the first that fits; all others are position-wise.
CATEGORIES = {
    "decode attention": r"_split_kernel|_combine_kernel|flash|fmha|scaled_dot_product",
    "promotion, cache writes": r"_step_kernel|CatArray|::cat$",
    "gates": r"^_kernel$",  # of the write gate
    "weight products": r"_matvec|gemm|gemv|cublas|cutlass|nvjet|splitKreduce|::linear$|mm_?$",
}
OTHER = "norms, rotary, elementwise"
Event = tuple[str, float, float]  # a kernel's name, and the microseconds when it started and ended


def category(kernel: str) -> str:
    """What a kernel is for, by its full name."""
    return next((name for name, pattern in CATEGORIES.items() if re.search(pattern, kernel, re.IGNORECASE)), OTHER)


def short(kernel: str) -> str:
    """A kernel's name without return type, namespaces and arguments; of torch's loops, what they compute is kept."""
    name = re.sub(r"^(void|std::enable_if<.*?>::type) |\(anonymous namespace\)::|at::native::|internal::", "", kernel)
    outer, _, rest = re.match(r"([^<(]*)([<(]?)(.*)", name, re.DOTALL).groups()
    inner = re.search(r"\w*Functor\w*|\w+_kernel(_cuda|_impl)?\b|\w+Ops\b|\w+gemm\w*", rest)
    return f"{outer[:60]}<{inner[0][:40]}>" if inner else outer[:60]


def aggregate(events: Iterable[Event], steps: int, wall: float) -> list[dict[str, Any]]:
    """Rows per kernel and step, the slowest first, then of a step: its wall time, and how much of it is busy."""
    events = sorted(events, key=lambda event: event[1])
    if not events:
        raise InputError("The profiler saw no kernel; check that it may read the GPU's activities on this machine.")
    spans = pd.DataFrame(
        [(short(name), category(name), end - start) for name, start, end in events],
        columns=["kernel", "category", "microseconds"],
    )
    found = spans.groupby(["kernel", "category"], as_index=False).agg(
        calls=("microseconds", "size"), microseconds=("microseconds", "sum")
    )
    found[["calls", "microseconds"]] /= steps
    busy, last = 0.0, float("-inf")
    for _, start, end in events:  # kernels that overlap count once
        busy += max(0.0, end - max(start, last))
        last = max(last, end)
    step = {"wall": wall, "busy": busy / steps, "busy share of wall": busy / steps / wall}
    return [
        *found.sort_values("microseconds", ascending=False).to_dict("records"),
        *({"kernel": name, "category": "step", "calls": 1.0, "microseconds": value} for name, value in step.items()),
    ]


def traced(step: Callable[[], object], steps: int, device: str) -> tuple[list[Event], float]:
    """Kernels that the profiler sees, or a CPU's outermost operators; wall microseconds of a step without it."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    cuda = device.startswith("cuda")
    end = torch.cuda.synchronize if cuda else (lambda: None)

    def several() -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        end()
        return 1e6 * (time.perf_counter() - begun) / steps

    end()
    wall = several()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        several()
    seen = [e for e in profiler.events() if (e.device_type == DeviceType.CUDA if cuda else e.cpu_parent is None)]
    return [(e.name, e.time_range.start, e.time_range.end) for e in seen], wall


def rows(settings: Settings, model: str, tokens: int, steps: int) -> Iterator[dict[str, Any]]:
    """Rows of the columns COLUMNS for both methods and protocols after ``tokens`` random entries."""
    from kvrepro.profiling.clock import WARM_STEPS, captured
    from kvrepro.profiling.measure import Bench, running  # imports kernels, which `prepare` comes before

    profile, shape = settings.profile, settings.shapes[model]
    bench, layers = Bench(profile), range(shape.layers)
    for protocol in PROTOCOLS:
        bench.weights(shape, protocol)
        for method in METHODS:
            kept = profile.kept if method == "wg_kv" else 1.0
            job = Job("end_to_end", model, "decode", tokens, method, protocol, kept, profile.window)
            slots = tokens + 2 * (2 * steps + 2 * WARM_STEPS)
            with running(bench, shape, job, slots, layers, layers) as (clock, arm, runner):
                token = torch.zeros(1, dtype=torch.long, device=profile.device)
                positions = [] if protocol == "paper" else [torch.full_like(token, tokens)]
                clock.paused = True

                def step(runner=runner, token=token, positions=positions) -> None:
                    token.copy_(runner.step(token, *positions))
                    for position in positions:
                        position.add_(1)

                if protocol != "paper":
                    step = captured(step, profile.device)
                for _ in range(WARM_STEPS):
                    step()
                events, wall = traced(step, steps, profile.device)
                arm.check()
            del arm, runner, step
            bench.free()
            row = {"method": method, "protocol": protocol, "tokens": tokens}
            yield from (row | found for found in aggregate(events, steps, wall))


def table(found: pd.DataFrame) -> str:
    """Microseconds of a step by category."""
    names = found["category"].where(found["category"] != "step", found["kernel"])
    sums = found.assign(what=names).groupby(["what", "protocol", "method"], sort=False)["microseconds"].sum()
    return sums.unstack(["protocol", "method"]).fillna(0.0).to_string(float_format=lambda x: f"{x:.4g}")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h200", help="a profile of config/latency.yaml")
    parser.add_argument("--model", help="a model of config/latency.yaml, the profile's first by default")
    parser.add_argument("--tokens", type=int, default=409600, help="entries of the cache")
    parser.add_argument("--steps", type=int, default=10, help="steps that are traced")
    parser.add_argument("--out", type=Path, help="CSV file of the rows; their provenance goes beside it")
    options = parser.parse_args(arguments)
    if options.tokens < 1 or options.steps < 1:
        parser.error("--tokens and --steps must be at least 1.")
    settings = load(options.profile)
    model = options.model or settings.profile.models[0]
    if model not in settings.shapes:
        raise unknown("model", model, settings.shapes, "config/latency.yaml")
    try:
        prepare(settings.profile)
    except InputError as error:
        parser.error(str(error))
    found = pd.DataFrame(rows(settings, model, options.tokens, options.steps), columns=COLUMNS)
    if options.out:
        size = f"--profile {options.profile} --model {model} --tokens {options.tokens} --steps {options.steps}"
        command = f"python -m kvrepro.profiling.trace_step {size} --out {options.out.name}"
        write_table(found, options.out, provenance({}, settings.profile.device, command=command))
    print(table(found))


if __name__ == "__main__":
    command_line(main)
