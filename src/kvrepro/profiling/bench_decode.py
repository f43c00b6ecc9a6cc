"""Time the decode kernels on one GPU: ``python -m kvrepro.profiling.bench_decode --out decode.csv --seconds 300``.

Every row is printed as soon as it is measured: what, plan, size, microseconds per layer, bytes of the kept keys and
values that had to be read, their rate, and that rate over the streaming-read rate of the same run. Several layers are
replayed from one CUDA graph, so that no layer finds its cache in L2 and no launch gap of the host is counted.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
import triton
import triton.language as tl

from kvrepro.cache.dual import DualCache, pages_for
from kvrepro.errors import InputError, command_line
from kvrepro.kernels.ragged_decode import DecodePlan

QUERY_HEADS, KV_HEADS, DIM, WINDOW, LAYERS = 32, 8, 128, 256, 32
GIB = 2**30
#: Compile-time variants by name, the default first; one call compares them.
PLANS = {
    "64x4s3p2": DecodePlan(),
    "64x4s3p2 not early": DecodePlan(early=False),
    "64x4s4p2": DecodePlan(64, 2, 4, 4),
    "64x4s3p3": DecodePlan(64, 3, 4, 3),
    "64x4s5p1": DecodePlan(64, 1, 4, 5),
    "64x8s4p2": DecodePlan(64, 2, 8, 4),
    "64x4s4p4": DecodePlan(64, 4, 4, 4),
    "64x2s3p3": DecodePlan(64, 3, 2, 3),
    "32x4s5p3": DecodePlan(32, 3, 4, 5),
    "32x2s4p4": DecodePlan(32, 4, 2, 4),
    "128x4s3p1": DecodePlan(128, 1, 4, 3),
    "128x8s3p1": DecodePlan(128, 1, 8, 3),
}


@triton.jit
def _read_kernel(X, OUT, per_program, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * per_program
    acc = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, per_program, BLOCK, num_stages=4):
        acc ^= tl.load(X + base + start + tl.arange(0, BLOCK))
    tl.store(OUT + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), acc)


@dataclass
class Bench:
    """Rows measured so far, the time that is left, and the rate that shares refer to."""

    deadline: float
    repeats: int
    rows: list[dict] = field(default_factory=list)
    stream: float = float("nan")  #: bytes per second

    def measure(self, what: str, call: Callable[[], tuple[float, int]], **size) -> float | None:
        """Run ``call() -> (seconds, bytes)`` and print its row; a failure is a row as well."""
        if time.monotonic() > self.deadline:
            print(f"{what} {size}: left out, the time is up", flush=True)
            return None
        try:
            seconds, moved = call()
        except Exception as error:  # one variant that does not compile or fit must not end the comparison
            self._add(
                what, size, error=f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
            )
            torch.cuda.empty_cache()
            return None
        self._add(
            what,
            size,
            us=seconds * 1e6,
            mb=moved / 1e6,
            tb_s=moved / seconds / 1e12,
            share=moved / seconds / self.stream,
        )
        return seconds

    def _add(self, what: str, size: dict, **found) -> None:
        self.rows.append({"what": what, **size, **found})
        shown = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in (size | found).items()]
        print(f"{what:28s} " + " ".join(shown), flush=True)

    def replay(self, call: Callable[[], object]) -> float:
        """Median seconds of a CUDA graph of ``call``, which was run once before."""
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        times = []
        for _ in range(self.repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return median(times)


def stream_rate(bench: Bench) -> None:
    """Streaming reads of 8 GiB, by several shapes; the fastest is the ceiling."""
    x = torch.randint(-(2**31), 2**31 - 1, (2 * GIB,), dtype=torch.int32, device="cuda")
    found = []
    for programs, block, warps in [
        (132 * 4, 4096, 8),
        (132 * 8, 2048, 4),
        (132 * 16, 2048, 4),
        (2**15, 8192, 8),
        (2**16, 8192, 8),
    ]:
        per = x.numel() // programs // block * block

        def call(programs=programs, block=block, warps=warps, per=per):
            out = torch.empty(programs * block, dtype=torch.int32, device="cuda")
            return bench.replay(
                lambda: _read_kernel[(programs,)](x, out, per, BLOCK=block, num_warps=warps)
            ), 4 * per * programs

        if seconds := bench.measure("stream", call, programs=programs, block=block, warps=warps):
            found.append(4 * per * programs / seconds)
    bench.stream = max(found)
    print(f"streaming read {bench.stream / 1e12:.3f} TB/s", flush=True)


def admission(layers: int, batch: int, tokens: int, kept: float, ragged: bool, seed: int = 0) -> torch.Tensor:
    """Global entries per row whose mean is ``kept`` of the tokens, even or uniform between 0.2 and 1.8 times that."""
    share = torch.ones(layers, batch, KV_HEADS)
    if ragged:
        share = 0.2 + 1.6 * torch.rand(share.shape, generator=torch.Generator().manual_seed(seed))
        share /= share.mean()
    return (share * kept * (tokens - WINDOW)).round().long().clamp(max=tokens - WINDOW)


def filled(
    layers: int, batch: int, tokens: int, kept: float, ragged: bool = False, shuffled: bool = True, spare: int = 8
):
    """A cache whose layers went through prefill with random keys and a random mask of exact counts.

    ``spare``: pages a row for decoding. Pages are handed out in random order, the hardest case, unless not shuffled.
    """
    counts = admission(layers, batch, tokens, kept, ragged)
    pages = pages_for(counts, WINDOW) + spare * counts.numel()
    cache = DualCache.allocate(
        layers=layers, batch=batch, kv_heads=KV_HEADS, head_dim=DIM, window=WINDOW, pages=pages, tokens=tokens + 4096,
        dtype=torch.bfloat16, device="cuda", page_order=torch.randperm(pages, device="cuda") if shuffled else None,
    )  # fmt: skip
    keys, values = torch.randn(2, batch, KV_HEADS, tokens, DIM, dtype=torch.bfloat16, device="cuda")
    for layer in range(layers):
        order = torch.rand(batch, KV_HEADS, tokens - WINDOW, device="cuda").argsort(-1)
        admitted = torch.ones(batch, KV_HEADS, tokens, dtype=torch.bool, device="cuda")
        admitted[..., : tokens - WINDOW] = order < counts[layer].cuda()[..., None]
        cache.prefill(layer, keys, values, admitted)
    torch.cuda.synchronize()
    return cache


def kept_bytes(cache: DualCache) -> int:
    """Bytes of all keys and values that the rows hold."""
    return int(cache.entries().sum()) * 2 * DIM * 2


def attention(bench: Bench, cache: DualCache, plan: DecodePlan) -> tuple[float, int]:
    """Seconds and bytes per layer of decode attention."""
    layers, batch = cache.rows.seen.shape[:2]
    q = torch.randn(batch, QUERY_HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    seconds = bench.replay(lambda: [cache.attend(layer, q, plan=plan) for layer in range(layers)])
    return seconds / layers, kept_bytes(cache) // layers


def compare_plans(bench: Bench, tokens: int) -> list[str]:
    """All plans at 25 % of a context; names, fastest first."""
    cache = filled(4, 1, tokens, 0.25)
    times = {}
    for name, plan in PLANS.items():
        seconds = bench.measure(
            "attention, plans",
            lambda plan=plan: attention(bench, cache, plan),
            plan=name,
            tokens=tokens,
            batch=1,
            kept=0.25,
        )
        if seconds:
            times[name] = seconds
    return sorted(times, key=times.__getitem__)


def sweep(bench: Bench, what: str, name: str, tokens: int, batch: int, kept: float, **options) -> None:
    """One size with one plan."""

    def call() -> tuple[float, int]:
        return attention(bench, filled(4 if kept < 1 else 2, batch, tokens, kept, **options), PLANS[name])

    bench.measure(what, call, plan=name, tokens=tokens, batch=batch, kept=kept)


def decode_step(bench: Bench, name: str, tokens: int) -> None:
    """Promotion of 32 layers at once and one by one, and a whole step of attention with promotion."""
    cache = filled(LAYERS, 1, tokens, 0.25, spare=64)
    new = torch.randn(2, LAYERS, 1, KV_HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    flags = torch.rand(LAYERS, 1, KV_HEADS, device="cuda") < 0.25
    q = torch.randn(1, QUERY_HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    cache.reserve(8 * bench.repeats)

    def promote(layer: int) -> None:
        cache.append(layer, new[0, layer], new[1, layer], flags[layer])

    def step() -> None:
        for layer in range(LAYERS):
            promote(layer)
            cache.attend(layer, q, plan=PLANS[name])

    size = {"plan": name, "tokens": tokens, "batch": 1, "kept": 0.25}
    moved = flags.numel() * 4 * DIM * 2
    bench.measure("promotion, one kernel", lambda: (bench.replay(lambda: cache.append_all(*new, flags)), moved), **size)
    bench.measure(
        "promotion, 32 kernels", lambda: (bench.replay(lambda: [promote(i) for i in range(LAYERS)]), moved), **size
    )
    bench.measure("step, 32 layers", lambda: (bench.replay(step), kept_bytes(cache)), **size)
    cache.check()


def prefill_write(bench: Bench, tokens: int) -> None:
    """Admission of one layer: plan, pages and writing, without a graph since it waits for the device once."""
    keys, values = torch.randn(2, 1, KV_HEADS, tokens, DIM, dtype=torch.bfloat16, device="cuda")
    admitted = torch.rand(1, KV_HEADS, tokens, device="cuda") < 0.25
    moved = int(admitted.sum()) * 2 * 2 * DIM * 2

    def call() -> tuple[float, int]:
        times = []
        for _ in range(4):
            cache = DualCache.allocate(
                layers=1, batch=1, kv_heads=KV_HEADS, head_dim=DIM, window=WINDOW, pages=tokens // 4, tokens=tokens,
                dtype=torch.bfloat16, device="cuda",
            )  # fmt: skip
            torch.cuda.synchronize()
            start = time.perf_counter()
            cache.prefill(0, keys, values, admitted)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return median(times[1:]), moved

    bench.measure("admission at prefill, 1 layer", call, tokens=tokens, batch=1, kept=0.25)


def run(bench: Bench, tokens: int) -> None:
    """All measurements, the most important first."""
    stream_rate(bench)
    ranked = compare_plans(bench, tokens)
    if not ranked:
        raise InputError("No plan of the decode kernel ran; see the rows above.")
    best = ranked[0]
    for name in ranked[:2]:
        decode_step(bench, name, tokens)
    sweep(bench, "attention, ragged heads", best, tokens, 1, 0.25, ragged=True)
    sweep(bench, "attention, pages in order", best, tokens, 1, 0.25, shuffled=False)
    for length in (100_000, 200_000, 300_000, 500_000):
        sweep(bench, "attention", best, length, 1, 0.25)
    for length in (100_000, 400_000):
        sweep(bench, "attention, dense", best, length, 1, 1.0)
    for length, batch in ((32_768, 4), (32_768, 16), (131_072, 4), (131_072, 8)):
        sweep(bench, "attention", best, length, batch, 0.25)
        sweep(bench, "attention, ragged heads", best, length, batch, 0.25, ragged=True)
    prefill_write(bench, tokens)


def main() -> None:
    """Parse the options, measure, and write the CSV whatever happens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--seconds", type=float, default=300, help="no measurement starts after this time")
    parser.add_argument("--tokens", type=int, default=400_000, help="context of the comparison of plans")
    parser.add_argument("--repeats", type=int, default=20, help="replays of which the median is taken")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA GPU; nothing was measured.")
    torch.manual_seed(0)
    bench = Bench(time.monotonic() + options.seconds, options.repeats)
    print(torch.cuda.get_device_name(), f"torch {torch.__version__} triton {triton.__version__}", flush=True)
    print({name: asdict(plan) for name, plan in PLANS.items()}, flush=True)
    try:
        run(bench, options.tokens)
    finally:
        names = list(dict.fromkeys(key for row in bench.rows for key in row))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(bench.rows)


if __name__ == "__main__":
    command_line(main)
