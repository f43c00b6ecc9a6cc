"""Random paged caches for the kernel tests: on a GPU where Triton compiles, else on the CPU through its interpreter."""

from __future__ import annotations

import torch

from kvrepro.kernels.common import INTERPRETED
from kvrepro.kernels.paged_cache import PagedRows, allocate, prefill

DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
#: Triton's interpreter multiplies bf16 wrongly in tl.dot, so bf16 is tested on a GPU only.
DTYPES = [torch.float16] if DEVICE == "cpu" else [torch.float16, torch.bfloat16]
EDGES = [1, 63, 64, 65, 127, 128, 129]
HEADS, DIM = 2, 32


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(shape, seed: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed)).to(DEVICE, dtype)


def mask(kind: str, batch: int, heads: int, n: int, seed: int = 0) -> torch.Tensor:
    """Admission ``[batch, heads, n]``: "random", "all", "none", or "one empty" (the first head admits nothing)."""
    share = {"random": 0.3, "one empty": 0.6, "all": 1.0, "none": 0.0}[kind]
    found = torch.rand(batch, heads, n, generator=generator(seed)) < share
    if kind == "one empty":
        found[:, 0] = False
    return found.to(DEVICE)


def empty(
    window: int, *, batch=1, heads=HEADS, dim=DIM, pages=96, table=40, layers=None, dtype=torch.float32
) -> PagedRows:
    """A cache whose pool holds NaN wherever nothing was written, with its pages handed out in random order."""
    rows = (batch, heads) if layers is None else (layers, batch, heads)
    cache = allocate(rows, dim, window, pages, table, dtype, DEVICE, torch.randperm(pages, generator=generator(9)))
    cache.pool.fill_(float("nan"))
    return cache


def filled(
    window: int, kind: str, n: int, seed: int = 0, *, batch=1, heads=HEADS, dim=DIM, dtype=torch.float32, **room
):
    """A cache after the prefill of ``n`` tokens, with their keys, values and admission."""
    cache = empty(window, batch=batch, heads=heads, dim=dim, dtype=dtype, **room)
    keys, values = (random((batch, heads, n, dim), seed + i, dtype) for i in (1, 2))
    admitted = mask(kind, batch, heads, n, seed)
    prefill(cache, keys, values, admitted)
    return cache, keys, values, admitted


def clone(cache: PagedRows) -> PagedRows:
    return PagedRows(**{name: tensor.clone() for name, tensor in vars(cache).items()})


def host(cache: PagedRows) -> PagedRows:
    """A copy on the CPU, for references that go token by token."""
    return PagedRows(**{name: tensor.cpu().clone() for name, tensor in vars(cache).items()})


def assert_same(a: PagedRows, b: PagedRows) -> None:
    """All state is equal bit by bit, NaN included."""
    a, b = host(a), host(b)
    for name in vars(a):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0, equal_nan=True, msg=name)
