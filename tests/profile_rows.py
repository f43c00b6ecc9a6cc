"""Profile rows with round numbers, for tests of what reads them; nothing here was measured."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd

from kvrepro.profiling.rows import PROFILE, job_rows, kernel_rows
from kvrepro.profiling.settings import Job, Settings, batches, end_to_end, sweeps

FULL_SECONDS = {"prefill": 100.0, "decode": 0.1}  # of attention at 409,600 tokens; the rest of the model takes a tenth
FASTER = {"paper": 4.0, "strongest_baseline": 3.0}
OOM = ("Llama-3.1-8B-Instruct", "prefill", 512000, "full", "paper")


def measurement(settings: Settings, job: Job, layers_timed: int | None = None) -> SimpleNamespace:
    """Attention grows with the square (prefill) or linearly (decode), and is FASTER with WG-KV."""
    shape = settings.shapes[job.model]
    timed = layers_timed or job.layers or shape.layers
    if (job.model, job.phase, job.tokens, job.method, job.protocol) == OOM:
        return SimpleNamespace(
            layers_timed=timed, seconds={}, bytes={}, passes=0, timing="", reason="out of memory: tried 14 GiB"
        )
    scale = FULL_SECONDS[job.phase] * timed / shape.layers
    length = job.tokens / 409600
    attention = scale * length ** (2 if job.phase == "prefill" else 1)
    rest = 0.1 * scale * (length if job.phase == "prefill" else 1)
    if job.method == "wg_kv":
        attention *= job.kept / 0.25 / FASTER[job.protocol]
        rest *= 1.05
    gates = shape.gate_parameters() if job.method == "wg_kv" else 0
    weights = 2 * (shape.parameters() + gates)
    cache = shape.cache_bytes(round(job.kept * job.tokens), 2) * job.batch
    return SimpleNamespace(
        layers_timed=timed,
        seconds={"total": attention + rest, "attention": attention, "non_attention": rest},
        bytes={"weights": weights, "cache": cache, "peak": 1.02 * (weights + cache)},
        passes=1,
        timing="one pass after a warm-up of one layer",
        reason="",
    )


def profile_rows(settings: Settings, layers_timed: int | None = None) -> pd.DataFrame:
    """Rows of all jobs, kernels, checks and of fragmentation."""
    profile = settings.profile
    rows = []
    for job in [*end_to_end(profile), *sweeps(profile), *batches(profile)]:
        rows += job_rows(profile, settings.shapes[job.model], job, measurement(settings, job, layers_timed))
    first = {"model": profile.models[0]}

    def kernel(name, method, numbers, **columns):
        rows.extend(kernel_rows(profile, name, method, numbers, **first | columns))

    kernel("streaming_read", "ceiling", {"per_second": 4e12})
    kernel("matrix_product", "ceiling", {"per_second": 8e14})
    for n in profile.kernels["prefill"]:
        flops, moved = 2.0 * n * n * 4096, 2.0 * n * 80 * 128
        for name, rate in (("dense_flash_attention_2", 3.2e14), ("dense_cudnn", 6e14)):
            kernel(name, "full", {"seconds": flops / rate, "flops": flops, "bytes": moved}, n_tokens=n)
        ours = flops / 6e14 / 3.7
        kept = {"budget": profile.kept, "n_tokens": n}
        kernel("vertical_slash", "wg_kv", {"seconds": ours, "flops": flops / 4, "bytes": moved}, **kept)
        kernel("vertical_slash_plan", "wg_kv", {"seconds": ours / 100, "flops": 0.0, "bytes": n * 16.0}, **kept)
    n = profile.kernels["decode"]
    size = n / 4 * 8 * 512
    numbers = {"seconds": size / 3.6e12, "flops": 4.0 * size, "bytes": size}
    kernel("ragged_decode", "wg_kv", numbers, n_tokens=n, budget=profile.kept)
    for name, error in (("vertical_slash", 0.003), ("decode_after_prefill", 0.002), ("ragged_decode", 0.001)):
        kernel(name, "wg_kv", {"error": error}, experiment="profile_checks")
    for n in profile.tokens:
        full = n * 131072
        sizes = {"full": full, "entries": full / 4, "paged": full / 4 * 1.01, "reallocated": full / 3}
        for name, size in (sizes | {"preallocated": full}).items():
            columns = {"experiment": "profile_fragmentation", "component": name, "n_tokens": n, "timing": "Computed."}
            kernel("fragmentation", "wg_kv", {"bytes": size}, **columns)
    return PROFILE.validate(pd.DataFrame(rows))
