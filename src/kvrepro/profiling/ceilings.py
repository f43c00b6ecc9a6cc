"""The two rates that nothing on a device exceeds, measured in the run whose kernels are held against them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrepro.profiling.clock import median_seconds

SIZE = 8192  # of the matrices
READ = 2**33  # bytes, far above any cache
#: Programs a multiprocessor, numbers a block, and warps of the read; the fastest counts, since a ceiling is a maximum.
SHAPES = ((4, 4096, 8), (8, 2048, 4), (16, 2048, 4))


@triton.jit
def _read(X, OUT, per_program, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * per_program
    acc = tl.zeros([BLOCK], tl.int32)
    for at in tl.range(0, per_program, BLOCK, num_stages=4):
        acc ^= tl.load(X + start + at + tl.arange(0, BLOCK))
    tl.store(OUT + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), acc)  # a thousandth of what is read


def streaming_read(device: str, size: int = READ, repeats: int = 10) -> float:
    """Bytes per second of reading about ``size`` bytes of device memory once."""
    x = torch.randint(-(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32, device=device)
    units = torch.cuda.get_device_properties(device).multi_processor_count if x.is_cuda else 1
    return max(_read_rate(x, units * programs, block, warps, repeats) for programs, block, warps in SHAPES)


def _read_rate(x: torch.Tensor, programs: int, block: int, warps: int, repeats: int) -> float:
    out = torch.empty(programs * block, dtype=torch.int32, device=x.device)
    per_program = len(x) // (programs * block) * block

    def call():
        _read[(programs,)](x, out, per_program, BLOCK=block, num_warps=warps)

    seconds = median_seconds(call, x.device, repeats, warm_up=2)
    return programs * per_program * x.element_size() / seconds


def matrix_product(device: str, dtype: torch.dtype, size: int = SIZE, repeats: int = 10) -> float:
    """Floating-point operations per second of a square matrix product on random data."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: a @ b, device, repeats, warm_up=3)
