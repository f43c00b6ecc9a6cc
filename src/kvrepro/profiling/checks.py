"""The kernels of a profile held against their references, in the run that times them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kvrepro.cache.dual import DualCache, pages_for
from kvrepro.kernels.ragged_decode import ragged_decode_attention_reference
from kvrepro.kernels.vertical_slash import vertical_slash_attention, vertical_slash_attention_reference
from kvrepro.profiling.masks import random_admission
from kvrepro.profiling.rows import kernel_rows
from kvrepro.profiling.settings import Profile

TOKENS, STEPS = 2085, 24  # neither is a multiple of a block


def check_rows(profile: Profile, model: str) -> Iterator[dict[str, Any]]:
    """One row a kernel: its largest error relative to the largest output, against float64.

    ``vertical_slash`` is the mask of §4.2, ``ragged_decode`` the paged cache attended head by head (Appendix B), and
    ``decode_after_prefill`` steps of lazy promotion against a prefill of the longer sequence (§4.3).
    """
    torch.manual_seed(profile.seed)
    device, dtype = profile.device, getattr(torch, profile.dtype)
    hq, hk, d = (profile.kernels[key] for key in ("query_heads", "kv_heads", "head_dim"))
    n = min(TOKENS, profile.kernels["prefill"][0])
    steps, window = min(STEPS, n // 4), profile.window
    q, k, v = (torch.randn(1, heads, n, d, device=device, dtype=dtype) for heads in (hq, hk, hk))
    admitted = random_admission(1, 1, hk, n, profile.kept, profile.seed, device)[0]
    wanted = vertical_slash_attention_reference(q, k, v, admitted, window)
    cache = DualCache.allocate(
        layers=1,
        batch=1,
        kv_heads=hk,
        head_dim=d,
        window=window,
        pages=pages_for(admitted.sum(-1) + steps, window),
        tokens=n,
        dtype=dtype,
        device=device,
    )
    start = n - steps
    cache.prefill(0, k[:, :, :start], v[:, :, :start], admitted[:, :, :start])
    decoded = []
    for t in range(start, n):
        cache.append(0, k[:, :, t], v[:, :, t], admitted[:, :, t])
        decoded.append(cache.attend(0, q[:, :, t]))
    found = {
        "vertical_slash": (vertical_slash_attention(q, k, v, admitted, window), wanted),
        "decode_after_prefill": (torch.stack(decoded, 2), wanted[:, :, start:]),
        "ragged_decode": (decoded[-1], ragged_decode_attention_reference(q[:, :, -1], cache.rows.layer(0))),
    }
    for name, (ours, reference) in found.items():
        error = ((ours.double() - reference.double()).abs().max() / reference.double().abs().max()).item()
        columns = {"experiment": "profile_checks", "model": model, "n_tokens": n, "timing": "against float64"}
        yield from kernel_rows(profile, name, "wg_kv", {"error": error}, budget=profile.kept, **columns)
