"""Every kernel timed by itself with its bytes and operations, and the ceilings they are held against, in one run.

Bytes count each input and each output once, so that a share of the roofline is a lower bound of what a kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from kvrepro.cache.dual import DualCache, pages_for
from kvrepro.cache.fragmentation import footprint
from kvrepro.kernels.vertical_slash import vertical_slash_attention
from kvrepro.kernels.vertical_slash_plan import compact, plan
from kvrepro.kernels.write_gate import write_gate
from kvrepro.profiling import ceilings, fused
from kvrepro.profiling.attention import BACKENDS, dense_attention
from kvrepro.profiling.checks import check_rows
from kvrepro.profiling.clock import captured, median_seconds
from kvrepro.profiling.gates import random_gates
from kvrepro.profiling.masks import random_admission
from kvrepro.profiling.measure import Bench
from kvrepro.profiling.rows import kernel_rows
from kvrepro.profiling.settings import Profile, Settings, Shape

GRAPH_CALLS = 10  # calls of a short kernel that one graph holds, so that launches do not count
BETA = (0.5, 1.5)  # of the kept fractions of heads in Figure 4: mean 0.25, and some heads keep nearly everything


def profile_kernels(settings: Settings, bench: Bench) -> list[dict[str, Any]]:
    """Rows of all kernels, of the ceilings, of checks and of fragmentation; the model's name stands for its heads."""
    profile, shape = settings.profile, settings.shapes[settings.profile.models[0]]
    rows = list(_ceilings(profile, bench))
    for part in (_prefill, _decode, _products):
        rows += part(profile, shape, bench)
        bench.free()
    rows += [*check_rows(profile, shape.name), *fragmentation_rows(profile, shape)]
    return [row | {"model": shape.name} for row in rows]


def _ceilings(profile: Profile, bench: Bench) -> Iterator[dict[str, Any]]:
    small = not bench.device.startswith("cuda")
    read = ceilings.streaming_read(bench.device, 2**18 if small else ceilings.READ)
    product = ceilings.matrix_product(bench.device, bench.dtype, 64 if small else ceilings.SIZE)
    for name, rate, timing in (
        ("streaming_read", read, "median of 10 reads of 8 GiB, the fastest of three shapes"),
        ("matrix_product", product, f"median of 10 products of size {ceilings.SIZE}"),
    ):
        yield from kernel_rows(profile, name, "ceiling", {"per_second": rate}, timing=timing)


def _normal(bench: Bench, *sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(size, device=bench.device, dtype=bench.dtype) for size in sizes]


def pairs_seen(admitted: torch.Tensor, window: int) -> int:
    """Pairs of a query and a key that the mask of §4.2 leaves, over all heads of ``[..., n]`` bool."""
    n = admitted.shape[-1]
    local = torch.arange(1, n + 1).clamp(max=window).sum().item() * admitted[..., 0].numel()
    older = admitted.long().cumsum(-1)[..., : max(0, n - window)].sum().item()
    return int(local + older)


def _prefill(profile: Profile, shape: Shape, bench: Bench) -> Iterator[dict[str, Any]]:
    hq, hk, d = (profile.kernels[key] for key in ("query_heads", "kv_heads", "head_dim"))
    element, window = bench.dtype.itemsize, profile.window
    timed = _timer(bench)
    for n in profile.kernels["prefill"]:
        q, k, v = _normal(bench, (1, hq, n, d), (1, hk, n, d), (1, hk, n, d))
        moved = 2 * (hq + hk) * n * d * element
        flops = 2 * n * (n + 1) * d * hq

        def rows(
            name: str, method: str, call: Callable, flops: float, moved: float, kept: float = 1.0, n=n, timed=timed
        ):
            seconds, timing = timed(call)
            numbers = {"seconds": seconds, "flops": flops, "bytes": moved}
            return kernel_rows(profile, name, method, numbers, n_tokens=n, budget=kept, timing=timing)

        for backend in BACKENDS:
            yield from rows(
                f"dense_{backend}", "full", lambda b=backend, x=(q, k, v): dense_attention(*x, b), flops, moved
            )
        admitted = random_admission(1, 1, hk, n, profile.kept, profile.seed, bench.device)[0]
        seen = 4 * d * (hq // hk) * pairs_seen(admitted, window)
        yield from rows(
            "vertical_slash",
            "wg_kv",
            lambda x=(q, k, v, admitted): vertical_slash_attention(*x, window),
            seen,
            moved,
            profile.kept,
        )
        gathered = 4 * profile.kept * hk * n * d * element  # admitted keys and values, read and written
        mask = admitted.numel() * (1 + 4 + 4 * profile.kept)  # read; a count of each entry and positions written
        yield from rows(
            "vertical_slash_plan",
            "wg_kv",
            lambda a=admitted, x=(k, v): compact(*x, plan(a, window)),
            0.0,
            mask + gathered,
            profile.kept,
        )
        gate = random_gates(shape, bench.dtype, bench.device, profile.seed)[0]
        hidden = 2 * n * hk * (2 * d + 1) * shape.gate_hidden
        moved = n * hk * (2 * d + 1) * element
        yield from rows("write_gate", "wg_kv", lambda x=(k, v, gate): write_gate(*x), hidden, moved)


def _timer(bench: Bench) -> Callable[[Callable], tuple[float, str]]:
    repeats = 3 if bench.device.startswith("cuda") else 1
    return lambda call: (median_seconds(call, bench.device, repeats), f"median of {repeats} calls after a warm-up")


def _in_graph(bench: Bench, call: Callable[[], object]) -> tuple[float, str]:
    """Seconds of a call among GRAPH_CALLS of one CUDA graph."""

    number, repeats = (GRAPH_CALLS, 5) if bench.device.startswith("cuda") else (1, 1)

    def calls():
        for _ in range(number):
            call()

    seconds = median_seconds(captured(calls, bench.device), bench.device, repeats) / number
    return seconds, f"median of {repeats} graphs of {number} calls"


def _cache(profile: Profile, bench: Bench, admitted: torch.Tensor, copies: int = 1) -> DualCache:
    """A dual cache whose ``copies`` layers hold the same random context with ``admitted`` ``[1, kv_heads, n]``."""
    d, (_, hk, n) = profile.kernels["head_dim"], admitted.shape
    spare = 16 * GRAPH_CALLS
    older = admitted[..., : max(0, n - profile.window)].sum(-1)
    cache = DualCache.allocate(
        layers=copies,
        batch=1,
        kv_heads=hk,
        head_dim=d,
        window=profile.window,
        pages=copies * pages_for(older + spare, profile.window),
        tokens=n + spare,
        dtype=bench.dtype,
        device=bench.device,
    )
    k, v = _normal(bench, (1, hk, n, d), (1, hk, n, d))
    for layer in range(copies):
        cache.prefill(layer, k, v, admitted)
    return cache


def _decode(profile: Profile, shape: Shape, bench: Bench) -> Iterator[dict[str, Any]]:
    hq, hk, d, n = (profile.kernels[key] for key in ("query_heads", "kv_heads", "head_dim", "decode"))
    element = bench.dtype.itemsize
    (q,), entry = _normal(bench, (1, hq, d)), 2 * d * element
    for kept, name, method in (
        (profile.kept, "ragged_decode", "wg_kv"),
        (1.0, "ragged_decode_dense", "full"),
    ):
        cache = _cache(profile, bench, random_admission(1, 1, hk, n, kept, profile.seed, bench.device)[0])
        seconds, timing = _in_graph(bench, lambda c=cache: c.attend(0, q))
        entries = int(cache.entries().sum())
        numbers = {"seconds": seconds, "flops": 4.0 * d * (hq // hk) * entries, "bytes": entries * entry}
        yield from kernel_rows(profile, name, method, numbers, n_tokens=n, budget=kept, timing=timing)
    admitted = random_admission(1, 1, hk, n, profile.kept, profile.seed, bench.device)[0]
    cache = _cache(profile, bench, admitted, copies=2)
    new = _normal(bench, (1, hk, d), (1, hk, d))
    flags = torch.ones(1, hk, dtype=torch.bool, device=bench.device)
    seconds, timing = _in_graph(bench, lambda: cache.append(0, *new, flags))
    numbers = {
        "seconds": seconds,
        "flops": 0.0,
        "bytes": 3 * hk * entry,
    }  # the new entry twice over, one leaves the ring
    yield from kernel_rows(profile, "promotion", "wg_kv", numbers, n_tokens=n, budget=profile.kept, timing=timing)
    held = cache.rows.lengths.max().item()
    kept = random_admission(1, 1, hk, held, 0.5, profile.seed, bench.device)[0]
    order = iter(range(2))  # a layer to warm up on and one to time, since compaction is not to be repeated
    seconds = median_seconds(lambda: cache.compact(next(order), kept), bench.device, 1)
    numbers = {"seconds": seconds, "flops": 0.0, "bytes": 2 * hk * round(held * 0.5) * entry}
    timing = "one call after a warm-up, half of the entries kept"
    yield from kernel_rows(profile, "compaction", "wg_kv", numbers, n_tokens=n, budget=profile.kept, timing=timing)


def _products(profile: Profile, shape: Shape, bench: Bench) -> Iterator[dict[str, Any]]:
    hidden, width = shape.config["hidden_size"], shape.config["intermediate_size"]
    x, norm, weight = _normal(bench, (1, hidden), (hidden,), (2 * width, hidden))
    seconds, timing = _in_graph(bench, lambda: fused.matvec(x, weight, norm, 1e-6, glu=True))
    numbers = {"seconds": seconds, "flops": 2.0 * weight.numel(), "bytes": weight.numel() * weight.element_size()}
    yield from kernel_rows(profile, "matvec_gate_up", "full", numbers, n_tokens=1, timing=timing)


def fragmentation_rows(profile: Profile, shape: Shape) -> Iterator[dict[str, Any]]:
    """Bytes of a ragged cache under three ways to hold it (Figure 4), with kept fractions that differ by head."""
    heads = torch.distributions.Beta(*(torch.tensor(x) for x in BETA))
    torch.manual_seed(profile.seed)
    kept = heads.sample((shape.layers, shape.kv_heads))
    element = getattr(torch, profile.dtype).itemsize
    timing = (
        f"Computed from lengths: the kept fraction of each of {kept.numel()} heads is drawn from Beta{BETA}, "
        "as uneven as §2.4 describes; reallocated buffers double, and their peak has the longest one twice."
    )
    for n in profile.tokens:
        lengths = (kept * max(0, n - profile.window)).round().long()
        found = footprint(lengths, n, profile.window, shape.head_dim, element)
        sizes = {
            "full": shape.cache_bytes(n, element),
            "entries": found.entries,
            "paged": found.paged,
            "preallocated": found.preallocated,
            "reallocated": found.reallocated_peak,
            "reallocation_copies": found.reallocated_copied,
        }
        for name, size in sizes.items():
            yield from kernel_rows(
                profile,
                "fragmentation",
                "wg_kv",
                {"bytes": size},
                experiment="profile_fragmentation",
                component=name,
                n_tokens=n,
                budget=float(kept.mean()),
                layers=shape.layers,
                layers_timed=shape.layers,
                timing=timing,
            )
