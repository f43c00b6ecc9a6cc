"""The two rates that nothing on a device exceeds, measured in the run whose kernels are held against them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrepro.profiling.clock import median_seconds

SIZE = 8192  # of the matrices
READ = 2**33  # bytes, far above any cache


@triton.jit
def _read(X, OUT, n, TURNS: tl.constexpr, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.int32)
    for turn in range(TURNS):
        at = (tl.program_id(0).to(tl.int64) * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)
        acc ^= tl.load(X + at, mask=at < n, other=0)
    tl.store(OUT + tl.program_id(0), tl.xor_sum(acc, 0))


def streaming_read(device: str, size: int = READ, repeats: int = 10) -> float:
    """Bytes per second of reading ``size`` bytes of device memory once."""
    x = torch.randint(-(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32, device=device)
    turns, block = 8, 1024
    programs = triton.cdiv(len(x), turns * block)
    out = torch.empty(programs, dtype=torch.int32, device=device)
    call = lambda: _read[(programs,)](x, out, len(x), TURNS=turns, BLOCK=block, num_warps=4)  # noqa: E731
    return x.nbytes / median_seconds(call, device, repeats, warm_up=2)


def matrix_product(device: str, dtype: torch.dtype, size: int = SIZE, repeats: int = 10) -> float:
    """Floating-point operations per second of a square matrix product on random data."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: a @ b, device, repeats, warm_up=3)
