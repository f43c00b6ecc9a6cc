"""The three checks every labelled document must pass (GateSight Appendix B)."""

from __future__ import annotations

import torch

from kvrepro.errors import InputError
from kvrepro.labels.rollout import Rollout
from kvrepro.labels.utility import ContinuationStates
from kvrepro.models.capture import Prefill, decoder_layers
from kvrepro.models.loading import LoadedModel

CLOSED_FORM = 1.4e-5  #: largest error against key deletion, relative to the layer's largest utility
#: Largest relative L2 error of a rebuilt module output, by the number type the module runs in.
MODULE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}


@torch.inference_mode()
def check(
    lm: LoadedModel, parent: Prefill, found: Rollout, utilities: list[torch.Tensor], entries: int, seed: int, name: str
) -> dict[str, float]:
    """Values of the checks, worst layer: ``closed_form_error``, ``module_error``, ``covered``.

    utilities: per attention layer ``[continuations, kv_heads, n]``. The first two look at continuation 0: the closed
    form against deletion of ``entries`` keys (each layer's most useful one, where the closed form is hardest, and
    random ones), and the attention module's output rebuilt from what the hooks saw. ``covered`` is the share of context
    positions with a utility that is a number. Raises InputError naming the document when one fails.
    """
    generator = torch.Generator().manual_seed(seed)
    values = {"closed_form_error": 0.0, "module_error": 0.0, "covered": 1.0}
    for number, layer in enumerate(lm.geometry.attention_layers):
        module, utility = decoder_layers(lm.model)[layer].self_attn, utilities[number]
        finite = torch.isfinite(utility).flatten(0, 1).all(0)
        values["covered"] = min(values["covered"], finite.sum().item() / parent.n)
        drawn = torch.randperm(parent.n, generator=generator)[: entries - 1].tolist()
        chosen = [int(utility[0].amax(0).nan_to_num().argmax()), *drawn]
        output, deleted = delete_keys(
            parent.keys[number],
            parent.values[number],
            found.rows[number],
            module.o_proj.weight,
            module.scaling,
            chosen,
        )
        error = (utility[0][:, chosen] - deleted).abs().max() / utility.max()
        values["closed_form_error"] = max(values["closed_form_error"], error.nan_to_num(float("inf")).item())
        gated = output * found.gates[number].double() if found.gates else output
        bias = 0 if module.o_proj.bias is None else module.o_proj.bias.double()
        rebuilt = gated.flatten(1) @ module.o_proj.weight.double().T + bias
        seen = found.outputs[number].double()
        error = (rebuilt - seen).norm() / seen.norm()
        values["module_error"] = max(values["module_error"], error.nan_to_num(float("inf")).item())
    failed = [
        *(["closed_form_error"] if values["closed_form_error"] > CLOSED_FORM else []),
        *(["module_error"] if values["module_error"] > MODULE[lm.dtype] else []),
        *(["covered"] if values["covered"] < 1 else []),
    ]
    if failed:
        told = ", ".join(f"{key} {values[key]:.3g}" for key in failed)
        raise InputError(
            f"{name}: label check failed ({told}); the capture does not match this model, so do not use its labels."
        )
    return values


def delete_keys(
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: ContinuationStates,
    projection: torch.Tensor,
    scaling: float,
    entries: list[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of continuation 0 in float64, with all keys and with each of ``entries`` deleted.

    Arguments as in :func:`kvrepro.labels.utility.utility`. Returns the outputs ``[t, query_heads, head_dim]`` and the
    largest change per KV head and deleted entry, ``[kv_heads, entries]``, after the output projection.
    """
    q, own_k, own_v = (x.double() for x in rows.sees(0))
    kv_heads, _, d = values.shape
    t = q.shape[1]
    k = torch.cat([keys.double(), own_k], 1)
    v = torch.cat([values.double(), own_v], 1)
    slices = projection.double().unflatten(1, (kv_heads, -1))  # [hidden, kv_heads, group * d]
    logits = torch.einsum("hgtd,hnd->hgtn", q.unflatten(0, (kv_heads, -1)), k) * scaling
    rows.hide(logits, 0)

    def output(logits, v):
        return (logits.softmax(-1).flatten(1, 2) @ v).unflatten(1, (-1, t))  # [kv_heads, group, t, d]

    whole, changes = output(logits, v), []
    for i in entries:
        change = whole - output(_without(logits, i, 3), _without(v, i, 1))
        after = torch.einsum("hgtd,xhgd->htx", change, slices.unflatten(2, (-1, d)))
        changes.append(after.norm(dim=-1).amax(-1))
    return whole.permute(2, 0, 1, 3).flatten(1, 2), torch.stack(changes, 1)


def _without(x: torch.Tensor, i: int, dim: int) -> torch.Tensor:
    return torch.cat([x.narrow(dim, 0, i), x.narrow(dim, i + 1, x.shape[dim] - i - 1)], dim)
