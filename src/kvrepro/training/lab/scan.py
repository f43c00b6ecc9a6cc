"""The two matrix recurrences of the Gated DeltaNet's chunked form, with hand-written gradients.

Both run in full fp32 on the chunk axis; everything else of the layer is in ``fast.py``.
"""

from __future__ import annotations

import torch

BLOCK = 8  # diagonal blocks that are inverted directly


class TriangularInverse(torch.autograd.Function):
    """``(I + A)^-1`` for a batch of strictly lower triangular matrices ``[batch, n, n]``, n a power of two >= 8.

    Diagonal 8x8 blocks are inverted by their (finite) Neumann product and merged pairwise. Every intermediate value is
    the inverse of a sub-block, so nothing grows; a Newton or Neumann iteration on the whole matrix reaches 1e10 when
    the keys of a chunk are alike, and overflows in TF32. TF32 is therefore off here whatever the global setting.
    """

    @staticmethod
    def forward(ctx, a: torch.Tensor) -> torch.Tensor:
        """The inverse; ``a`` is ``[batch, n, n]`` float32."""
        tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        batch, n, _ = a.shape
        size, count = BLOCK, n // BLOCK

        def blocks(rows: int, size: int) -> torch.Tensor:  # the diagonal blocks [batch * rows, size, size] of a
            diagonal = a.view(batch, rows, size, rows, size).diagonal(dim1=1, dim2=3)
            return diagonal.permute(0, 3, 1, 2)

        d = blocks(count, size).reshape(batch * count, size, size)
        d2 = d @ d
        x = torch.eye(size, device=a.device, dtype=a.dtype) - d  # (I - D)(I + D^2)(I + D^4) = (I + D)^-1, D^8 = 0
        x = x + x @ d2
        x = x + x @ (d2 @ d2)
        while size < n:
            count //= 2
            x = x.view(batch * count, 2, size, size)
            upper, lower = x[:, 0], x[:, 1]
            off = blocks(count, 2 * size)[:, :, size:, :size].reshape(batch * count, size, size)
            merged = x.new_zeros(batch * count, 2 * size, 2 * size)
            merged[:, :size, :size] = upper
            merged[:, size:, size:] = lower
            merged[:, size:, :size] = -(lower @ (off @ upper))
            x = merged
            size *= 2
        torch.backends.cuda.matmul.allow_tf32 = tf32
        x = x.view(batch, n, n)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        """``dA = -(X^T dX X^T)``, strictly lower part."""
        (x,) = ctx.saved_tensors
        xt = x.transpose(-1, -2)
        return -(xt @ grad @ xt).tril(-1)


class ChunkScan(torch.autograd.Function):
    """``S_{i+1} = M_i S_i + N_i`` from ``S_0 = 0``; returns the states *before* each chunk.

    ``M`` is ``[chunks, groups, k, k]``, ``N`` is ``[chunks, groups, k, v]``: one batched product a chunk.
    """

    @staticmethod
    def forward(ctx, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        """States ``[chunks, groups, k, v]``."""
        out = torch.empty_like(n)
        state = torch.zeros_like(n[0])
        last = m.shape[0] - 1
        for i in range(last + 1):
            out[i] = state
            if i < last:
                state = torch.baddbmm(n[i], m[i], state)
        ctx.save_for_backward(m, out)
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same recurrence backwards with ``M^T``."""
        m, out = ctx.saved_tensors
        mt, grad = m.transpose(-1, -2), grad.contiguous()
        dn = torch.empty_like(out)
        carry = torch.zeros_like(out[0])
        for i in range(m.shape[0] - 1, -1, -1):
            dn[i] = carry  # gradient of the state after chunk i
            if i > 0:
                carry = torch.baddbmm(grad[i], mt[i], carry)
        return dn @ out.transpose(-1, -2), dn
