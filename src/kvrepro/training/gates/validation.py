"""Held-out distillation loss against cache size with binarised gates: the axes of WG-KV Figures 11 and 12."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from kvrepro.models.gate import WriteGates
from kvrepro.models.gated_attention import Gating, gated
from kvrepro.models.loading import LoadedModel
from kvrepro.training.gates.loss import hidden_states
from kvrepro.training.gates.recipe import GateRecipe
from kvrepro.training.gates.rows import Rows

EXPERIMENT = "write_gate_validation"
CLOSE = 0.1  #: a gate that is closer to zero or one has decided (§3.3)
LENGTH_STEP = 1 << 20  #: validation rows count as steps beyond any run


def held_out(recipe: GateRecipe, tokenizer: Any, chat: bool) -> dict[int, np.ndarray]:
    """``recipe.validation`` rows per length from held-out documents: length -> int32 ``[rows, length]``."""
    rows = Rows(recipe, tokenizer, chat, split="heldout")
    return {
        length: np.array([rows.row(LENGTH_STEP, i, length) for i in range(recipe.validation)], np.int32)
        for length in sorted(recipe.lengths)
    }


def cache_share(admitted: torch.Tensor, window: int) -> torch.Tensor:
    """Normalised cache size after a context: entries held over tokens. admitted ``[..., n]`` bool -> ``[...]``.

    The last ``window`` tokens are held in any case. Exact; the published code counts whole pages.
    """
    n = admitted.shape[-1]
    local = min(window, n)
    return (admitted[..., : n - local].sum(-1) + local) / n


@torch.no_grad()
def measure(
    lm: LoadedModel, gates: WriteGates, recipe: GateRecipe, rows: dict[int, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Per row and threshold the distillation loss, the cache size over all layers and heads, and the share of gates
    that are close to zero or one."""
    for length, batch in rows.items():
        for number, ids in enumerate(torch.from_numpy(batch).long().split(1)):
            ids = ids.to(lm.device)
            target = hidden_states(lm, ids).float()
            for threshold in recipe.thresholds:
                gating = Gating([gates], recipe.window, threshold=threshold)
                with gated(lm, gating):
                    loss = F.mse_loss(hidden_states(lm, ids).float(), target)
                g = torch.stack(list(gating.seen.values()))
                yield {
                    "length": length,
                    "row": number,
                    "threshold": threshold,
                    "loss": loss.item(),
                    "cache": cache_share(g >= threshold, recipe.window).mean().item(),
                    "decided": ((g < CLOSE) | (g > 1 - CLOSE)).float().mean().item(),
                }


def tidy(
    measured: Iterable[dict[str, Any]], tier: str, model: str, recipe: GateRecipe, trade_off: float
) -> Iterator[dict[str, Any]]:
    """Rows of results: budget is the cache size, task the row length in tokens; metrics are distillation_loss, and
    decided_gates, the share of gates below 0.1 or above 0.9."""
    for m in measured:
        options = {"lambda": trade_off, "threshold": m["threshold"], "window": recipe.window}
        same = {
            "paper": "wg_kv",
            "experiment": EXPERIMENT,
            "tier": tier,
            "model": model,
            "method": "write_gate",
            "options": json.dumps(options, sort_keys=True),
            "budget": m["cache"],
            "task": f"held_out_{m['length']}",
            "item": m["row"],
            "seed": recipe.seed,
        }
        for metric, key in (("distillation_loss", "loss"), ("decided_gates", "decided")):
            yield same | {"metric": metric, "value": m[key]}
