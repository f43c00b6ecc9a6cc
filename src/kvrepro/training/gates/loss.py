"""The training objective of WG-KV §3.3: distillation of the final hidden states plus λ times what gates admit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from kvrepro.models.capture import decoder, decoder_layers
from kvrepro.models.gate import WriteGates
from kvrepro.models.gated_attention import Gating, gated
from kvrepro.models.loading import LoadedModel
from kvrepro.training.gates.recipe import GateRecipe


@dataclass(frozen=True)
class Losses:
    """On the device, one for each λ: L2 distillation loss (mean over tokens and channels), sparsity loss, mean gate."""

    distillation: torch.Tensor
    sparsity: torch.Tensor
    gate: torch.Tensor


def hidden_states(lm: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    """Hidden states after the final norm, ``[rows, n, hidden]``; the published code distils these too."""
    return decoder(lm.model)(input_ids=ids, use_cache=False).last_hidden_state


@contextmanager
def checkpointed(lm: LoadedModel) -> Iterator[None]:
    """Forwards inside keep only what enters a layer; the backward, which must lie inside too, computes the rest."""
    layers = decoder_layers(lm.model)
    for layer in layers:  # what transformers' own switch sets, without its train mode for the modules inside
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        layer.gradient_checkpointing = layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False


def sparsity_loss(gates: Iterable[torch.Tensor], form: str, window: int) -> torch.Tensor:
    """Mean over layers, heads and tokens of g + g(1 - g) for each row, gates ``[rows, kv_heads, n]`` (§3.3); ``reach``
    is the published code's form (:data:`kvrepro.training.gates.recipe.SPARSITIES`)."""
    g = torch.stack(list(gates))
    cost = g + g * (1 - g)
    if form == "reach":
        n = g.shape[-1]
        inside = (window / (n - torch.arange(n, device=g.device, dtype=g.dtype))).clamp(max=1)
        cost = inside + (1 - inside) * cost
    return cost.mean((0, 2, 3))


def step(lm: LoadedModel, sweep: Sequence[WriteGates], recipe: GateRecipe, ids: torch.Tensor) -> Losses:
    """Forward of the model and of its gated form, for every λ of a sweep, on ``ids`` ``[rows, n]``; gradients are added
    to the gates'. The gates do not touch each other: the result is that of a step of each, up to rounding."""
    with torch.no_grad():
        target = hidden_states(lm, ids)
    gating = Gating(sweep, recipe.window, recipe.floor, recipe.epsilon)
    trade_offs = torch.tensor([gates.trade_off for gates in sweep], device=ids.device)

    def of_each(rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(0, (len(sweep), -1)).mean(1)

    with gated(lm, gating), checkpointed(lm) if recipe.checkpoint_activations else nullcontext():
        hidden = hidden_states(lm, ids.repeat(len(sweep), 1))
        error = hidden.float() - target.float().repeat(len(sweep), 1, 1)
        distillation = of_each(error.square().mean((1, 2)))
        sparsity = of_each(sparsity_loss(gating.seen.values(), recipe.sparsity, recipe.window))
        (distillation + trade_offs * sparsity).sum().backward()
    gate = of_each(torch.stack(list(gating.seen.values())).detach().mean((0, 2, 3)))
    return Losses(distillation.detach(), sparsity.detach(), gate)
