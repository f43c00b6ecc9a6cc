"""Time scoring on one GPU (GateSight §5.3): ``python -m kvrepro.profiling.bench_scoring --out rows.csv --seconds 300``.

Methods score random signals, keys and queries of the true shapes of config/scoring.yaml as the evaluation calls them.
GateSight starts from gathered signals; its variant "with gathering" first makes them from logits and value vectors, as
in the paper's time. Every row is printed as soon as it is measured: the median of three calls after a warm-up, by CUDA
events, and the most memory that the allocator held above what was there before. KVzip and the prefill run layers of
random weights; where the time does not allow all of them, ``seconds`` are those of ``layers_timed`` layers, and a
column of its own scales.
"""

from __future__ import annotations

import argparse
import csv
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import triton

from kvrepro.errors import InputError, command_line, unknown
from kvrepro.estimators import fused
from kvrepro.files import sha256_file
from kvrepro.kernels.gatesight_score import PRECISIONS, TILINGS, gatesight_score, gatesight_score_reference
from kvrepro.kernels.gdn_signals import gdn_signals_reference
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill
from kvrepro.profiling.clock import median_seconds
from kvrepro.profiling.repetition import Passes, fastest_kernel
from kvrepro.profiling.scoring import CONFIG, GATHERING, PREFILL, Settings, Shape, as_dict, load, read
from kvrepro.profiling.scoring_inputs import geometry, random_estimators, random_layers, random_prefill, ready
from kvrepro.results import provenance, write_json

REPEATS = 3
CHECKED = 4099  #: tokens whose scores are compared with float64
MIB = 2**20


@dataclass
class Bench:
    """Rows measured so far on a device, and the time that is left."""

    deadline: float
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    rows: list[dict[str, Any]] = field(default_factory=list)

    def left(self) -> float:
        """Seconds until nothing more is started."""
        return self.deadline - time.monotonic()

    def measure(self, call: Callable[[], dict[str, Any]], **what: Any) -> bool:
        """Add and print the row ``what`` with what ``call()`` finds; a failure is a row with its reason.

        False when the time is up or the call failed.
        """
        named = " ".join(f"{k}={v}" for k, v in what.items() if k not in ("layers", "layers_timed"))
        if self.left() <= 0:
            print(f"{named}: left out, the time is up", flush=True)
            return False
        try:
            found = call()
        except InputError:
            raise
        except Exception as error:  # one that does not compile or fit must not end the comparison
            text = str(error).splitlines()
            self._add(what | {"reason": f"{type(error).__name__}: {text[0][:160] if text else ''}"}, named)
            return False
        finally:
            self.free()
        self._add(what | found, named)
        return True

    def _add(self, row: dict[str, Any], named: str) -> None:
        self.rows.append(as_dict(**row))
        shown = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items() if f"{k}=" not in named]
        print(named, *shown, flush=True)

    def free(self) -> None:
        """Give memory that nothing refers to back to the device."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def timed(self, call: Callable[[], object], repeats: int = REPEATS) -> dict[str, Any]:
        """Median seconds of a call after a warm-up, and MiB that it takes at its peak (empty on a CPU)."""
        seconds = median_seconds(call, self.device, repeats)
        found = {"seconds": seconds, "passes": repeats, "timing": f"median of {repeats} after a warm-up"}
        if self.device == "cuda":
            self.free()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            kept = call()  # held until the peak is read
            torch.cuda.synchronize()
            found["extra_mib"] = (torch.cuda.max_memory_allocated() - before) / MIB
            del kept
        return found


def score_methods(bench: Bench, settings: Settings, shape: Shape, methods: Sequence[str], tokens: int) -> None:
    """The methods that need no pass, one length."""
    wanted = [m for m in settings.methods if m in methods and m != "kvzip"]
    if not wanted or bench.left() <= 0:
        return
    given = random_prefill(shape, tokens, bench.device, bench.dtype)
    for name in wanted:
        method = ready(name, shape, settings.estimators)
        bench.measure(lambda method=method: bench.timed(lambda: method.score(given)), **_what(shape, name, tokens))
        if name == "gatesight":
            bench.measure(lambda m=method: _gathering(bench, shape, m, given), **_what(shape, name, tokens, GATHERING))


def _gathering(bench: Bench, shape: Shape, method: Eviction, given: Prefill) -> dict[str, Any]:
    """Signals of all GDN layers made from what these compute, and scored; the signals count as extra memory."""
    layers = random_layers(shape, given.n, bench.device, bench.dtype)
    found = bench.timed(lambda: method.score(replace(given, signals=layers.gathered())))
    held, every = len(layers.values), len(shape.gdn_layers)
    shared = "" if held == every else f"; {every} GDN layers share value vectors of {held} in turn"
    return found | {"timing": found["timing"] + shared}


def check_kernel(bench: Bench, settings: Settings, shape: Shape, tokens: int = CHECKED) -> None:
    """Largest difference from float64, of the fused scorer by precision and of gathered signals; nothing is timed."""
    given = random_prefill(shape, tokens, bench.device, bench.dtype).signals
    networks = fused.networks(random_estimators(shape, settings.estimators).heads, geometry(shape)).to(bench.device)
    expected = gatesight_score_reference(given, networks)

    def error(precision: str) -> dict[str, Any]:
        return {"error": float((gatesight_score(given, networks, precision) - expected).abs().max()), "passes": 1}

    for precision in PRECISIONS:
        bench.measure(lambda p=precision: error(p), **_what(shape, "gatesight", tokens, f"check {precision}"))

    def of_signals() -> dict[str, Any]:
        layers = random_layers(shape, tokens, bench.device, bench.dtype)
        found, worst = layers.gathered(), 0.0
        for layer, signals in enumerate(found):
            parts = layers.beta[layer], layers.gate[layer], layers.values[layer % len(layers.values)]
            exact = gdn_signals_reference(*parts, layers.a_log[layer], layers.dt_bias[layer], torch.empty_like(signals))
            worst = max(worst, float((signals - exact).abs().max()))
        return {"error": worst, "passes": 1}

    bench.measure(of_signals, **_what(shape, "gatesight", tokens, "check gathering"))


def compare_kernels(bench: Bench, settings: Settings, shape: Shape, tokens: int) -> None:
    """The fused scorer by tiling, precision and dtype of the signals."""
    if bench.left() <= 0:
        return
    given = random_prefill(shape, tokens, bench.device, bench.dtype).signals
    networks = fused.networks(random_estimators(shape, settings.estimators).heads, geometry(shape)).to(bench.device)

    def compare(variant: str, signals: torch.Tensor, precision: str = "tf32", tiling: str | None = None) -> None:
        def call() -> torch.Tensor:
            return gatesight_score(signals, networks, precision, TILINGS[tiling] if tiling else None)

        bench.measure(lambda: bench.timed(call), **_what(shape, "gatesight", tokens, variant))

    for name in TILINGS:
        compare(f"tf32 {name}", given, tiling=name)
    for precision in ("tf32x3", "ieee"):
        compare(precision, given, precision)
    compare("tf32, signals in bfloat16", given.bfloat16())


def run_passes(
    bench: Bench, shape: Shape, methods: Sequence[str], tokens: int, kernel: str, most: float, groups: int | None = None
) -> None:
    """KVzip's repetition and the prefill at one length, each within about ``most`` seconds.

    A warm-up of one group of layers compiles kernels and tells how many groups fit.
    """
    every = len(shape.attention_layers)
    for name in (m for m in ("kvzip", PREFILL) if m in methods):
        if bench.left() <= 0:
            print(f"{shape.name} {name} {tokens}: left out, the time is up", flush=True)
            continue
        one = {}

        def warm_up(name: str = name, one: dict = one) -> dict[str, Any]:
            run = _pass(bench, shape, tokens, 1, kernel, name)
            run.call()
            one["seconds"] = median_seconds(run.call, bench.device, 1, warm_up=0)
            return {"seconds": one["seconds"], "passes": 1, "timing": "one pass of one group of layers, after another"}

        what = _what(shape, name, tokens)
        measured = bench.measure(warm_up, **what | {"variant": "one group", "layers_timed": shape.attention_every})
        if not measured:
            continue
        fit = groups or max(1, min(every, int(min(most, bench.left()) / max(one["seconds"], 1e-9))))
        repeats = REPEATS if (REPEATS + 1) * fit * one["seconds"] <= min(most, bench.left()) else 1

        def whole(name: str = name, fit: int = fit, repeats: int = repeats) -> dict[str, Any]:
            run = _pass(bench, shape, tokens, fit, kernel, name)
            found = bench.timed(run.call, repeats) if repeats > 1 else _once(bench, run.call)
            parts = run.passes.clock.seconds()
            calls = repeats + 1 + (bench.device == "cuda") if repeats > 1 else 1
            found["attention_seconds"] = sum(parts.values()) / calls
            found["timing"] += f"; groups of layers share weights; {kernel}"
            timed = fit * shape.attention_every
            return found | _scaled(found["seconds"], timed, shape.layers)

        bench.measure(whole, **what | {"layers_timed": fit * shape.attention_every})


def _once(bench: Bench, call: Callable[[], object]) -> dict[str, Any]:
    """Seconds and peak of a pass that is too long to be repeated; one group of layers went before."""
    bench.free()
    cuda = bench.device == "cuda"
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(call, bench.device, 1, warm_up=0)
    found = {"seconds": seconds, "passes": 1, "timing": "one pass after a warm-up of one group of layers"}
    return found | ({"extra_mib": (torch.cuda.max_memory_allocated() - before) / MIB} if cuda else {})


@dataclass
class _Run:
    passes: Passes
    call: Callable[[], object]


def _pass(bench: Bench, shape: Shape, tokens: int, groups: int, kernel: str, name: str) -> _Run:
    passes = Passes(shape, bench.device, bench.dtype, tokens, groups, kernel)
    return _Run(passes, passes.prefill if name == PREFILL else passes.repeat)


def _scaled(seconds: float, timed: int, layers: int) -> dict[str, Any]:
    return {} if timed == layers else {"seconds_scaled_to_all_layers": seconds * layers / timed}


def _what(shape: Shape, method: str, tokens: int, variant: str = "") -> dict[str, Any]:
    return {
        "model": shape.name,
        "method": method,
        "variant": variant,
        "tokens": tokens,
        "layers": shape.layers,
        "layers_timed": shape.layers,
    }


def run(
    bench: Bench, settings: Settings, models: Sequence[str], methods: Sequence[str], lengths: Sequence[int]
) -> None:
    """All measurements, the most important first: the longest context of the first model, then shorter ones."""
    order = sorted(lengths, reverse=True)
    first = settings.shapes[models[0]]
    if "gatesight" in methods:
        check_kernel(bench, settings, first)
    for tokens in order:
        score_methods(bench, settings, first, methods, tokens)
    if "gatesight" in methods:
        compare_kernels(bench, settings, first, order[0])
    for name in models[1:]:
        for tokens in order:
            score_methods(bench, settings, settings.shapes[name], methods, tokens)
    if first.intermediate and bench.left() > 0 and {"kvzip", PREFILL} & set(methods):
        kernel = fastest_kernel(first, bench.device)
        print(f"fastest dense attention: {kernel}", flush=True)
        for number, tokens in enumerate(reversed(order)):  # the shorter ones take a small part of the time
            rest = len(order) - number
            run_passes(bench, first, methods, tokens, kernel, bench.left() / (1 if rest == 1 else rest + 1) / 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the options, measure, and write the CSV whatever happens."""
    settings = load(CONFIG)
    every = [*settings.methods, PREFILL]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--seconds", type=float, default=300, help="no measurement starts after this time")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(settings.lengths), help="tokens of the contexts")
    parser.add_argument("--methods", nargs="+", default=every, help=f"some of {', '.join(every)}")
    parser.add_argument("--models", nargs="+", default=list(settings.shapes), help="shapes of config/scoring.yaml")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file has; newer ones count")
    options = parser.parse_args(arguments)
    _check(options, settings, every)
    if not torch.cuda.is_available():
        raise InputError("This benchmark needs a CUDA GPU; nothing was measured.")
    kept = options.append and options.out.exists()
    before = read(options.out).astype(object).fillna("").to_dict("records") if kept else []
    bench = Bench(time.monotonic() + options.seconds)
    print(torch.cuda.get_device_name(), f"torch {torch.__version__} triton {triton.__version__}", flush=True)
    try:
        run(bench, settings, options.models, options.methods, options.lengths)
    finally:
        write([*before, *bench.rows], options.out, bench.device)


def _check(options: argparse.Namespace, settings: Settings, every: Sequence[str]) -> None:
    for name in options.methods:
        if name not in every:
            raise unknown("method", name, every, "--methods")
    for name in options.models:
        if name not in settings.shapes:
            raise unknown("model", name, settings.shapes, "--models")
    if min(options.lengths) < 1:
        raise InputError(f"--lengths: {min(options.lengths)} tokens make no context; give at least 1.")


def write(rows: Sequence[dict[str, Any]], path: Path, device: str) -> None:
    """Write the rows as CSV, and beside it what they were measured with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(as_dict()))
        writer.writeheader()
        writer.writerows(rows)
    about = provenance({}, device, command=f"python -m kvrepro.profiling.bench_scoring --out {path.name}")
    write_json(about | {"rows": len(rows), "sha256": sha256_file(path)}, Path(f"{path}.json"))


if __name__ == "__main__":
    command_line(main)
