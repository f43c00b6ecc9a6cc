"""Benchmark of vertical-slash attention and the write gate: every tiling against the dense kernels of the same run.

Tilings are first checked on small sizes, then compared at one length, and the fastest goes through the other lengths,
sparsities and windows. A row is printed as soon as it is measured; one that fails says why and does not end the run.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import triton

from kvrepro.errors import InputError, command_line
from kvrepro.kernels import write_gate as gate
from kvrepro.kernels.vertical_slash import TILINGS, plan, vertical_slash_attention, vertical_slash_attention_reference
from kvrepro.kernels.vertical_slash_plan import compact
from kvrepro.profiling.attention import BACKENDS, dense_attention
from kvrepro.profiling.ceilings import matrix_product, streaming_read
from kvrepro.profiling.clock import captured, median_seconds
from kvrepro.profiling.masks import random_admission

QUERY_HEADS, KV_HEADS, DIM, WINDOW, KEPT = 32, 8, 128, 256, 0.25
SAMPLED = 48  #: query rows of every head that are compared with float32
LIMIT = 1e-2  #: relative error of bf16 above which a kernel counts as wrong
CALLS = 64  #: of a short kernel in one CUDA graph, so that launches do not count
DTYPE = torch.bfloat16


@dataclass
class Bench:
    """Rows measured so far and the time that is left."""

    device: str
    deadline: float
    repeats: int
    rows: list[dict] = field(default_factory=list)
    dense: dict[tuple[str, int], float] = field(default_factory=dict)  #: seconds by back end and tokens

    def row(self, what: str, call: Callable[[], dict], **about) -> dict | None:
        """Print and keep ``about`` with what ``call`` measures; None where it fails or the time is up."""
        if time.monotonic() > self.deadline:
            print(f"{what} {about}: left out, the time is up", flush=True)
            return None
        try:
            found = call()
        except Exception as error:  # one variant that does not compile or fit must not end the comparison
            reason = " ".join(str(error).split())[:300]
            self._keep(what, about, {"failed": f"{type(error).__name__}: {reason}"})
            return None
        self._keep(what, about, found)
        return found

    def _keep(self, what: str, about: dict, found: dict) -> None:
        self.rows.append({"what": what, **about, **found})
        shown = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in (about | found).items()]
        print(f"{what:16s}", *shown, flush=True)

    def seconds(self, call: Callable[[], object]) -> float:
        """Median seconds of a call."""
        return median_seconds(call, self.device, self.repeats)


def tensors(
    bench: Bench, n: int, kept: float, heads: tuple[int, int, int] = (QUERY_HEADS, KV_HEADS, DIM), seed: int = 0
):
    """Random q, k, v ``[1, heads, n, head_dim]`` and an exact random admission ``[1, kv_heads, n]``."""
    query_heads, kv_heads, d = heads
    generator = torch.Generator(bench.device).manual_seed(seed)
    q, k, v = (
        torch.randn(1, h, n, d, generator=generator, device=bench.device, dtype=DTYPE)
        for h in (query_heads, kv_heads, kv_heads)
    )
    return q, k, v, random_admission(1, 1, kv_heads, n, kept, seed, bench.device)[0]


def operations(admitted: torch.Tensor, window: int, query_heads: int, d: int) -> float:
    """Floating-point operations of both products over the visible pairs of a query and a key."""
    n = admitted.shape[-1]
    local = torch.arange(1, n + 1).clamp(max=window).sum().item() * admitted[..., 0].numel()
    older = admitted.long().cumsum(-1)[..., : max(0, n - window)].sum().item()
    return 4.0 * d * (query_heads // admitted.shape[1]) * (local + older)


def sampled_error(out, q, k, v, admitted, window: int, seed: int = 0) -> float:
    """Relative error of random query rows of every head against float32 with an explicit mask."""
    n, group = q.shape[2], q.shape[1] // k.shape[1]
    rows = torch.randint(0, n, (SAMPLED,), generator=torch.Generator().manual_seed(seed)).to(q.device)
    rows[0], rows[1] = 0, n - 1
    wrong = right = 0.0
    for head in range(k.shape[1]):
        i, j = rows[:, None], torch.arange(n, device=q.device)
        seen = (j <= i) & ((i - j < window) | admitted[0, head])
        heads = slice(head * group, (head + 1) * group)
        scores = q[0, heads, rows].float() @ k[0, head].float().T * q.shape[3] ** -0.5
        expected = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v[0, head].float()
        wrong += (out[0, heads, rows].float() - expected).square().sum().item()
        right += expected.square().sum().item()
    return (wrong / right) ** 0.5


def correct(bench: Bench, name: str) -> bool:
    """Whether a tiling is right on ragged sizes, at an offset, and twice in a row with the same bits."""

    def call() -> dict:
        worst = 0.0
        for n, window, seed in ((1, 256, 1), (129, 64, 2), (1000, 256, 3), (4133, 256, 4)):
            q, k, v, admitted = tensors(bench, n, KEPT, seed=seed)
            for t in {n, (n + 1) // 2}:
                part = q[:, :, n - t :]
                out = vertical_slash_attention(part, k, v, admitted, window, tiling=name)
                again = vertical_slash_attention(part, k, v, admitted, window, tiling=name)
                expected = vertical_slash_attention_reference(part.float(), k, v, admitted, window)
                error = ((out.float() - expected).norm() / expected.norm()).item()
                if not error < LIMIT or not torch.equal(out, again):
                    raise InputError(
                        f"relative error {error:.3g} at {t} queries of {n}, same={torch.equal(out, again)}"
                    )
                worst = max(worst, error)
        return {"error": worst}

    return bench.row("correct", call, variant=name) is not None


def measure_dense(bench: Bench, n: int) -> None:
    """Both dense back ends at one length."""
    q, k, v, _ = tensors(bench, n, KEPT)
    for backend in BACKENDS:

        def call(backend=backend) -> dict:
            seconds = bench.seconds(lambda: dense_attention(q, k, v, backend))
            bench.dense[backend, n] = seconds
            return {"ms": seconds * 1e3, "tflops": 2 * n * (n + 1) * DIM * QUERY_HEADS / seconds / 1e12}

        bench.row("dense", call, variant=backend, tokens=n)


def measure_sparse(bench: Bench, name: str, n: int, kept: float = KEPT, window: int = WINDOW) -> float | None:
    """One tiling at one size, planning included; returns seconds."""

    def call() -> dict:
        q, k, v, admitted = tensors(bench, n, kept)
        out = vertical_slash_attention(q, k, v, admitted, window, tiling=name)
        error = sampled_error(out, q, k, v, admitted, window)
        del out
        seconds = bench.seconds(lambda: vertical_slash_attention(q, k, v, admitted, window, tiling=name))
        planned = plan(admitted, window)
        numbering = bench.seconds(lambda: plan(admitted, window))
        gathering = bench.seconds(lambda: compact(k, v, planned))
        found = {"ms": seconds * 1e3, "tflops": operations(admitted, window, QUERY_HEADS, DIM) / seconds / 1e12}
        found |= {
            f"over_{backend}": bench.dense[backend, n] / seconds for backend in BACKENDS if (backend, n) in bench.dense
        }
        found |= {"plan_ms": numbering * 1e3, "gather_ms": gathering * 1e3}
        return found | {"plan_share": (numbering + gathering) / seconds, "error": error}

    found = bench.row("vertical_slash", call, variant=name, tokens=n, kept=kept, window=window)
    return found and found["ms"] / 1e3


def measure_gate(bench: Bench, n: int, hidden: int, ceilings: tuple[float, float]) -> None:
    """All tilings of the write gate at one length, with the share of the time that products and bytes need at least."""
    product, stream = ceilings
    generator = torch.Generator(bench.device).manual_seed(0)
    sizes = ((DIM,), (DIM,), (KV_HEADS, hidden, 2 * DIM), (KV_HEADS, hidden), (KV_HEADS, hidden), (KV_HEADS,))
    weights = gate.GateWeights(
        *(torch.randn(s, generator=generator, device=bench.device, dtype=DTYPE) * 0.06 for s in sizes)
    )
    _, pre, keys, _ = tensors(bench, n, KEPT)
    flops = 2.0 * KV_HEADS * n * hidden * (2 * DIM + 1)
    moved = KV_HEADS * n * (2 * DIM * DTYPE.itemsize + 4) + weights.w1.nbytes
    calls = max(1, CALLS // n)
    floor = max(flops / product, moved / stream)
    for name, tiling in gate.TILINGS.items():
        if (tiling.tokens > 16) != (n > 16):
            continue

        def call(tiling=tiling) -> dict:
            few = slice(0, 2048)
            out = gate.write_gate(pre[:, :, few], keys[:, :, few], weights, tiling=tiling)
            expected = gate.write_gate_reference(pre[:, :, few], keys[:, :, few], weights)
            many = lambda: [gate.write_gate(pre, keys, weights, tiling=tiling) for _ in range(calls)]  # noqa: E731
            seconds = bench.seconds(captured(many, bench.device)) / calls
            return {
                "ms": seconds * 1e3,
                "tflops": flops / seconds / 1e12,
                "roofline": floor / seconds,
                "error": (out - expected).abs().max().item(),
            }

        bench.row("write_gate", call, variant=name, tokens=n, hidden=hidden)


def run(bench: Bench, options: argparse.Namespace) -> None:
    """All measurements, the most important first."""
    right = [name for name in options.variants if correct(bench, name)]
    measure_dense(bench, options.tokens)
    times = {name: measure_sparse(bench, name, options.tokens) for name in right}
    ranked = sorted((name for name in right if times[name]), key=times.__getitem__)
    if not ranked:
        raise InputError("No tiling of the vertical-slash kernel ran; see the rows above.")
    best = ranked[0]
    measure_sparse(bench, best, options.tokens)  # once more: the difference is the noise
    product, stream = matrix_product(bench.device, DTYPE), streaming_read(bench.device)
    for hidden in (512, 192):
        measure_gate(bench, options.tokens, hidden, (product, stream))
        measure_gate(bench, 1, hidden, (product, stream))
    for n in options.lengths:
        measure_dense(bench, n)
        for name in ranked[:2]:
            measure_sparse(bench, name, n)
    if options.sweeps:
        for kept in (0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 1.0):
            measure_sparse(bench, best, options.tokens, kept)
        for window in (64, 128, 512, 1024, 2048, 4096):
            measure_sparse(bench, best, options.tokens, window=window)


def write(rows: list[dict], out: Path) -> None:
    """All rows as CSV; a column that a row does not have stays empty."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Parse the options, measure, and write the CSV whatever happens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--seconds", type=float, default=240, help="no measurement starts after this time")
    parser.add_argument("--tokens", type=int, default=131_072, help="length at which all variants are compared")
    parser.add_argument("--lengths", type=int, nargs="*", default=[65_536, 262_144, 196_608], help="other lengths")
    parser.add_argument("--variants", nargs="*", choices=TILINGS, default=list(TILINGS), help="tilings to compare")
    parser.add_argument("--sweeps", action="store_true", help="also sweep sparsity and window")
    parser.add_argument("--repeats", type=int, default=5, help="calls of which the median is taken")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA GPU; nothing was measured.")
    bench = Bench("cuda", time.monotonic() + options.seconds, options.repeats)
    print(torch.cuda.get_device_name(), f"torch {torch.__version__} triton {triton.__version__}", flush=True)
    try:
        run(bench, options)
    finally:
        write(bench.rows, options.out)


if __name__ == "__main__":
    command_line(main)
