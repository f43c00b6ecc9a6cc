"""The fused write gate against float64 at edge sizes, for both published widths and every tiling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paged_tools import DEVICE, EDGES, random

from kvrepro.errors import InputError
from kvrepro.kernels.write_gate import TILINGS, GateTiling, GateWeights, write_gate, write_gate_reference

SMALL = GateTiling(32, 32, 4, 2)


def weights(heads, d, hidden, dtype=torch.float32) -> GateWeights:
    return GateWeights(
        norm_pre=1 + 0.2 * random((d,), 11, dtype),
        norm_post=1 + 0.2 * random((d,), 12, dtype),
        w1=random((heads, hidden, 2 * d), 13, dtype) * (2 * d) ** -0.5,
        b1=random((heads, hidden), 14, dtype),
        w2=random((heads, hidden), 15, dtype) * 4 * hidden**-0.5,
        b2=random((heads,), 16, dtype),
    )


def check(pre, post, w, tolerance=2e-6, **options):
    gates = write_gate(pre, post, w, **options)
    expected = write_gate_reference(pre, post, w)
    assert gates.shape == post.shape[:3] and gates.dtype == torch.float32
    assert expected.std() > 0.05 or expected.numel() < 9, "gates that hardly differ test nothing"
    torch.testing.assert_close(gates, expected, rtol=0, atol=tolerance)
    return gates


def keys(n, d, heads=2, batch=1, dtype=torch.float32):
    return (3 * random((batch, heads, n, d), 1, dtype), random((batch, heads, n, d), 2, dtype))


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("hidden", [8, 32, 50])
def test_edge_sizes(n, hidden):
    check(*keys(n, 32, batch=2), weights(2, 32, hidden), tiling=SMALL)


@pytest.mark.parametrize("n", [1, 16, 17])
def test_few_tokens_as_in_decoding(n):
    check(*keys(n, 64, heads=4, batch=3), weights(4, 64, 96))


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_head_widths_and_precisions(d, dtype, tolerance):
    check(*keys(130, d, dtype=dtype), weights(2, d, 96, dtype), tolerance)


@pytest.mark.parametrize("name", TILINGS)
@pytest.mark.parametrize("hidden", [192, 512])
def test_every_tiling_at_the_published_widths(name, hidden):
    check(
        *keys(70, 128, heads=1, dtype=torch.float16), weights(1, 128, hidden, torch.float16), 2e-3, tiling=TILINGS[name]
    )


def test_memory_of_any_layout():
    pre, post = keys(50, 32, batch=2)
    w = weights(2, 32, 40)
    expected = check(pre, post, w)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (pre, post)]
    assert torch.equal(write_gate(*turned, w), expected)
    assert torch.equal(write_gate(pre.mT.contiguous().mT, post, w), expected)


def test_every_head_has_its_own_weights():
    pre, post = (x[:, :1].expand(-1, 2, -1, -1) for x in keys(40, 32))
    gates = check(pre, post, weights(2, 32, 40))
    assert (gates[:, 0] - gates[:, 1]).abs().max() > 0.1


def test_saturated_gates_stay_finite():
    pre, post = keys(40, 32)
    w = weights(2, 32, 40)
    gates = write_gate(pre, post, replace(w, w2=1e3 * w.w2))
    assert gates.isfinite().all() and gates.min() == 0 and gates.max() == 1


@pytest.mark.parametrize(
    "name, bad", [("w1", torch.zeros(2, 40, 32)), ("b2", torch.zeros(3)), ("w2", torch.zeros(2, 9))]
)
def test_bad_weights_are_named(name, bad):
    pre, post = keys(5, 32)
    with pytest.raises(InputError, match=f"Gate weight {name}"):
        write_gate(pre, post, replace(weights(2, 32, 40), **{name: bad.to(DEVICE)}))


def test_keys_must_match():
    pre, post = keys(5, 32)
    with pytest.raises(InputError, match="Keys before RoPE"):
        write_gate(pre[:, :, :4], post, weights(2, 32, 40))
