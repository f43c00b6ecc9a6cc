"""What all kernels share: whether they are interpreted, and the head widths that they take."""

from __future__ import annotations

import os

from kvrepro.errors import InputError

#: Triton's interpreter runs the kernels on a CPU. It multiplies bf16 wrongly, so products are then made in float32.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


def check_head_width(head_dim: int) -> None:
    """InputError for a width that a tile of the tensor cores cannot have."""
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise InputError(
            f"head_dim {head_dim} is not a power of two of at least 16, which the kernel needs; pad the heads."
        )
