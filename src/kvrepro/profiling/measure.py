"""One job timed: the seconds and bytes of its components, how they were timed, or why there are none."""

from __future__ import annotations

import gc
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from kvrepro.profiling.arms import make_arm
from kvrepro.profiling.clock import WARM_STEPS, Clock, captured
from kvrepro.profiling.eager import Eager, random_model
from kvrepro.profiling.lean import Lean, fuse
from kvrepro.profiling.settings import Job, Profile, Shape

COMPILE_TOKENS = 2048  # of a pass that is there to compile kernels


@dataclass
class Measurement:
    """What a job found. ``seconds`` and ``bytes`` by component; empty, with a ``reason``, when it failed."""

    layers_timed: int
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    passes: int = 0
    timing: str = ""
    reason: str = ""


class Bench:
    """A device with the weights of at most one model on it, which jobs share."""

    def __init__(self, profile: Profile):
        self.profile = profile
        self.device, self.dtype = profile.device, getattr(torch, profile.dtype)
        self._held: tuple[str, str] | None = None
        self._weights: Any = None

    def weights(self, shape: Shape, protocol: str) -> Any:
        """A transformers model (paper) or fused weights (strongest baseline), random, of every layer."""
        if self._held != (shape.name, protocol):
            self._weights = None
            self.free()
            model = random_model(shape, self.dtype, self.device, self.profile.seed)
            self._weights = model if protocol == "paper" else fuse(model)
            self._held = shape.name, protocol
        return self._weights

    def runner(self, shape: Shape, job: Job, arm: Any, layers: range) -> Eager | Lean:
        """The decoder of the job's protocol over some layers."""
        weights = self.weights(shape, job.protocol)
        if job.protocol == "paper":
            return Eager(weights, arm, layers)
        return Lean(shape, weights, arm, layers, self.profile.chunk)

    def free(self) -> None:
        """Give memory that nothing refers to back to the device, and forget the peak."""
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Most bytes allocated at once since :meth:`free`; on a CPU nothing counts them."""
        return torch.cuda.max_memory_allocated() if self.device.startswith("cuda") else 0


def measure(bench: Bench, shape: Shape, job: Job, seconds: float) -> Measurement:
    """Time a job within about ``seconds``; running out of memory is a finding, not an error."""
    time_phase = _prefill if job.phase == "prefill" else _decode
    try:
        found, reason = time_phase(bench, shape, job, seconds), ""
    except torch.cuda.OutOfMemoryError as error:
        tried = re.search(r"Tried to allocate [0-9.]+ \w+", str(error))
        found, reason = None, "out of memory" + (f": {tried[0]}" if tried else "")
    finally:
        bench.free()  # outside of the except block, whose traceback would keep the tensors alive
    return found or Measurement(job.layers or shape.layers, reason=reason)


@contextmanager
def running(bench: Bench, shape: Shape, job: Job, slots: int, layers: range, filled: range):
    """An arm with the caches of the layers ``filled``, and the decoder that runs ``layers``."""
    clock = Clock(bench.device)
    arm = make_arm(shape, job, slots, clock, bench.device, bench.dtype, bench.profile.seed)
    for layer in filled:
        arm.fill(layer, *_random(bench, layer, 2, (job.batch, shape.kv_heads, job.tokens, shape.head_dim)))
    runner = bench.runner(shape, job, arm, layers)
    try:
        yield clock, arm, runner
    finally:
        if isinstance(runner, Eager):
            runner.close()


def _random(bench: Bench, seed: int, number: int, size: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator(bench.device).manual_seed(seed)
    return [torch.randn(size, generator=generator, device=bench.device, dtype=bench.dtype) for _ in range(number)]


def _prefill(bench: Bench, shape: Shape, job: Job, seconds: float) -> Measurement:
    """A forward over a whole context.

    The warm-up runs the last layer with the caches of all others in place: it has the memory peak of a whole pass, so
    that a lack of memory shows before the time is spent, and it tells how many layers fit into the time.
    """
    generator = torch.Generator(bench.device).manual_seed(bench.profile.seed)
    tokens = torch.randint(shape.config["vocab_size"], (job.tokens,), generator=generator, device=bench.device)
    bench.weights(shape, job.protocol)
    bench.free()
    last = range(shape.layers - 1, shape.layers)
    short = replace(job, tokens=min(job.tokens, COMPILE_TOKENS))
    _pass(bench, shape, short, tokens[: short.tokens], last)
    found = _pass(bench, shape, job, tokens, last)
    most = min(job.layers or shape.layers, shape.layers)
    fit = max(1, int(seconds / max(found["total"], 1e-9)))
    layers = range(shape.layers - min(most, fit), shape.layers)
    again = found["total"] * len(layers) < bench.profile.repeats_below
    passes = [_pass(bench, shape, job, tokens, layers) for _ in range(bench.profile.repeats if again else 1)]
    parts = {name: median(p[name] for p in passes) for name in passes[0] if name != "cache"}
    parts["non_attention"] = parts["total"] - parts["attention"]
    held = {"weights": _weight_bytes(shape, job, bench), "cache": passes[-1]["cache"], "peak": bench.peak()}
    timing = f"median of {len(passes)} passes" if len(passes) > 1 else "one pass"
    return Measurement(len(layers), parts, held, len(passes), f"{timing} after a warm-up of one layer")


def _pass(bench: Bench, shape: Shape, job: Job, tokens: torch.Tensor, layers: range) -> dict:
    """Seconds by part of one forward through the layers, and bytes of the cache of all layers."""
    with running(bench, shape, job, job.tokens + bench.profile.steps, layers, range(layers.start)) as (
        clock,
        arm,
        run,
    ):
        clock.seconds()
        with clock.span("total"):
            run.prefill(tokens)
        return clock.seconds() | {"cache": arm.cache_bytes()}


def _decode(bench: Bench, shape: Shape, job: Job, seconds: float) -> Measurement:
    """Steps of one token per row after contexts whose caches hold random keys and values."""
    bench.weights(shape, job.protocol)
    bench.free()
    layers = range(min(job.layers or shape.layers, shape.layers))
    slots = job.tokens + 2 * (bench.profile.steps + 2 * WARM_STEPS)
    with running(bench, shape, job, slots, layers, layers) as (clock, arm, runner):
        bench.free()  # what filling the caches took is no part of a step's peak
        token = torch.zeros(job.batch, dtype=torch.long, device=bench.device)
        run = _eager_steps if job.protocol == "paper" else _graph_steps
        parts, steps = run(bench, job, runner, clock, token, seconds)
        parts["non_attention"] = parts["total"] - parts["attention"]
        arm.check()
        held = {"cache": arm.cache_bytes()}
        if len(layers) == shape.layers:
            held |= {"weights": _weight_bytes(shape, job, bench), "peak": bench.peak()}
    how = "CUDA graph" if job.protocol != "paper" and bench.device.startswith("cuda") else "eager"
    timing = f"mean of {steps} steps ({how}), cache filled with random entries"
    return Measurement(len(layers), parts, held, steps, timing)


def _eager_steps(bench, job, runner, clock, token, seconds) -> tuple[dict[str, float], int]:
    for _ in range(WARM_STEPS):
        token = runner.step(token)
    clock.seconds()
    with clock.span("total"):
        token = runner.step(token)
    steps = _affordable(bench, clock.seconds()["total"], seconds)
    with clock.span("total"):
        for _ in range(steps):
            token = runner.step(token)
    return {name: value / steps for name, value in clock.seconds().items()}, steps


def _graph_steps(bench, job, runner, clock, token, seconds) -> tuple[dict[str, float], int]:
    """Whole steps and their attention alone, each as one CUDA graph; a CPU runs the same calls one by one."""
    position = torch.full_like(token, job.tokens)
    heads = runner.heads(job.batch, 1)
    for x in heads:
        if x is not None:
            x.normal_()

    def step():
        token.copy_(runner.step(token, position))
        position.add_(1)

    clock.paused, timer = True, Clock(bench.device)
    parts, fewest = {}, bench.profile.steps
    for name, call in (("total", step), ("attention", lambda: runner.attention_step(heads))):
        replay = captured(call, bench.device)
        with timer.span(name):
            replay()
        steps = _affordable(bench, timer.seconds()[name], seconds / 2)
        with timer.span(name):
            for _ in range(steps):
                replay()
        parts[name] = timer.seconds()[name] / steps
        fewest = min(fewest, steps)
    return parts, fewest


def _affordable(bench: Bench, one: float, seconds: float) -> int:
    return max(1, min(bench.profile.steps, math.floor(seconds / max(one, 1e-9))))


def _weight_bytes(shape: Shape, job: Job, bench: Bench) -> int:
    """Bytes of the parameters, gates included where the method has them."""
    gates = shape.gate_parameters() if job.method == "wg_kv" else 0
    return (shape.parameters() + gates) * bench.dtype.itemsize
