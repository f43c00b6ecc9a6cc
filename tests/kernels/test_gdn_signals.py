"""Signals of a Gated DeltaNet layer against float64 at edge sizes, and against what the evaluation captures."""

from __future__ import annotations

import pytest
import torch
from paged_tools import DEVICE, EDGES, random

from kvrepro.errors import InputError
from kvrepro.kernels.common import INTERPRETED
from kvrepro.kernels.gdn_signals import gdn_signals, gdn_signals_reference
from kvrepro.models import capture
from kvrepro.models.capture import decoder_layers


def layer(n, heads=3, d=32, dtype=torch.float32):
    """Beta and gate logits, values, A_log and dt_bias."""
    return (
        3 * random((n, heads), 1, dtype),
        9 * random((n, heads), 2, dtype),
        random((n, heads, d), 3, dtype) * 4,
        random((heads,), 4),
        random((heads,), 5, dtype),
    )


def check(given, out=None):
    shape = *given[2].shape[:2], 3
    out = torch.full(shape, float("nan"), device=DEVICE) if out is None else out
    found = gdn_signals(*given, out)
    assert found is out
    expected = gdn_signals_reference(*given, torch.empty(shape, device=DEVICE))
    torch.testing.assert_close(found, expected, rtol=2e-6 if INTERPRETED else 2e-5, atol=1e-30)
    return found


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_edge_sizes(n, heads):
    check(layer(n, heads))


@pytest.mark.parametrize("d", [1, 20, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_head_widths_and_precisions(d, dtype):
    check(layer(70, d=d, dtype=dtype))


def test_the_published_heads():
    check(layer(5, 48, 128, torch.bfloat16))


def test_memory_of_any_layout():
    beta, gate, values, *of_heads = layer(50)
    expected = check((beta, gate, values, *of_heads))

    def alike(found):  # compiled for another layout, a kernel may sum in another order
        return torch.equal(found, expected) if INTERPRETED else torch.allclose(found, expected, rtol=1e-6, atol=0)

    wide = random((50, 200), 6)
    wide[:, 70:166] = values.flatten(1)  # behind queries and keys, as the convolution leaves them
    assert alike(check((beta, gate, wide[:, 70:166].unflatten(1, (3, 32)), *of_heads)))
    both = torch.cat([beta, gate], 1)
    assert alike(check((both[:, :3], both[:, 3:], values, *of_heads)))
    turned = values.transpose(1, 2).contiguous().transpose(1, 2)
    assert alike(check((beta.T.contiguous().T, gate, turned, *of_heads)))
    room = torch.full((54, 3, 3), float("nan"), device=DEVICE)
    assert alike(check((beta, gate, values, *of_heads), room[2:52]))
    assert room[:2].isnan().all() and room[52:].isnan().all()


def test_extreme_logits_stay_finite():
    beta, gate, values, a_log, dt_bias = layer(4, heads=2)
    gate[:] = torch.tensor([[-80.0, 80], [-17, 17], [-1e4, 1e4], [0, 25]])
    beta[:] = torch.tensor([[-80.0, 80], [-1e4, 1e4], [0, 1], [2, 3]])
    values[0] = 0
    found = check((beta, gate, values, a_log, torch.zeros_like(dt_bias)))
    assert found.isfinite().all() and (found[:2, 0, 1] < 0).all() and (found[0, :, 2] == 0).all()


def test_no_tokens_no_signals():
    assert check(layer(0)).shape == (0, 3, 3)


def test_bad_input_is_named():
    given, out = layer(5), torch.empty(5, 3, 3, device=DEVICE)
    for place, name in ((0, "beta logits"), (1, "gate logits"), (3, "A_log"), (4, "dt_bias")):
        bad = [x[:2] if i == place else x for i, x in enumerate(given)]
        with pytest.raises(InputError, match=name):
            gdn_signals(*bad, out)
    for bad in (out[:4], out.double(), out.transpose(0, 1).contiguous().transpose(0, 1)):
        with pytest.raises(InputError, match="signals are"):
            gdn_signals(*given, bad)


@pytest.mark.skipif(not INTERPRETED, reason="the model is on a CPU, where flash-linear-attention does not run")
def test_they_are_the_signals_of_the_evaluation(tiny_hybrid):
    """From what the layers' own modules gave in a forward; there the values go through the convolution as here."""
    seen, hooks = {}, []
    layers = decoder_layers(tiny_hybrid.model)
    for i in tiny_hybrid.geometry.gdn_layers:
        for name in ("in_proj_b", "in_proj_a", "in_proj_qkv"):
            module = getattr(layers[i].linear_attn, name)
            hooks.append(module.register_forward_hook(lambda _, __, out, key=(i, name): seen.__setitem__(key, out[0])))
    given = capture.prefill(tiny_hybrid, torch.arange(40) + 5).signals
    for hook in hooks:
        hook.remove()
    for place, i in enumerate(tiny_hybrid.geometry.gdn_layers):
        module = layers[i].linear_attn
        width, kernel = module.value_dim, module.conv_kernel_size
        x = torch.nn.functional.pad(seen[i, "in_proj_qkv"].T[-width:], (kernel - 1, 0))
        v = torch.nn.functional.conv1d(x[None], module.conv1d.weight[-width:], groups=width)[0].T
        values = torch.nn.functional.silu(v).unflatten(1, (-1, module.head_v_dim))
        parts = seen[i, "in_proj_b"], seen[i, "in_proj_a"], values, module.A_log, module.dt_bias
        found = check([x.detach().to(DEVICE) for x in parts])
        torch.testing.assert_close(found.cpu(), given[place], rtol=1e-5, atol=1e-6)
