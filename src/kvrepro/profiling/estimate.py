"""How long a job will take, roughly, so that jobs can be ordered and budgeted before a device is at hand."""

from __future__ import annotations

from kvrepro.profiling.settings import Job, Profile, Shape

#: Rates of one NVIDIA H200 that plans assume: per second, of dense attention by protocol, of the admitted part of
#: vertical-slash attention, of matrix products, and of bytes read. Nothing measured is computed from them.
DENSE = {"paper": 320e12, "strongest_baseline": 540e12}
VERTICAL_SLASH, PRODUCT, READ = 450e12, 620e12, 3.3e12
SETUP = 3.0  # seconds for weights, masks, a cache of random entries and compiling
EAGER = 0.9e-3  # seconds of a layer of an eager decode step, which launches bound


def expected_seconds(shape: Shape, job: Job, profile: Profile, layers: int | None = None) -> float:
    """Seconds of a job, warm-up and repeats included, when it times ``layers`` layers (its own number by default)."""
    timed = layers or job.layers or shape.layers
    n, share = job.tokens, timed / shape.layers
    if job.phase == "prefill":
        flops = 2 * n * n * shape.query_heads * shape.head_dim
        rate = DENSE[job.protocol] if job.method == "full" else VERTICAL_SLASH / job.kept
        layer = flops / rate + 2 * n * shape.parameters() / shape.layers / PRODUCT
        one = layer * timed
        return SETUP + 2 * layer + one * (profile.repeats if one < profile.repeats_below else 1)
    held = shape.cache_bytes(round(n * job.kept) * job.batch, 2) + 2 * shape.parameters()
    step = held * share / READ + (EAGER * timed if job.protocol == "paper" else 0)
    return SETUP + step * 2 * profile.steps
