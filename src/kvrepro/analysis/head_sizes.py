"""What every head admits of contexts of different kinds: WG-KV Appendix H and Figure 13."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from tqdm import tqdm

from kvrepro.analysis.patterns import SIZES
from kvrepro.analysis.tidy import tidy
from kvrepro.models.capture import decoder
from kvrepro.models.gate import WriteGates
from kvrepro.models.gated_attention import Gating, gated
from kvrepro.models.loading import LoadedModel
from kvrepro.training.gates.validation import cache_share


@torch.no_grad()
def head_sizes(lm: LoadedModel, gates: WriteGates, tokens: torch.Tensor, threshold: float) -> torch.Tensor:
    """Normalised cache size of every head after a context ``[n]`` with binarised gates, local window included:
    ``[layers, kv_heads]``."""
    gating = Gating([gates], gates.window, threshold=threshold)
    with gated(lm, gating):
        decoder(lm.model)(input_ids=tokens[None].to(lm.device), use_cache=False)
    admitted = torch.stack([gating.seen[layer][0] >= threshold for layer in lm.geometry.attention_layers])
    return cache_share(admitted, gates.window)


def head_size_rows(
    lm: LoadedModel,
    gates: WriteGates,
    contexts: Mapping[str, Sequence[torch.Tensor]],
    threshold: float,
    tier: str,
    seed: int = 0,
) -> pd.DataFrame:
    """Tidy rows of experiment ``head_sizes``: the metric ``cache_size`` of every layer and head (options), per context.
    ``contexts`` maps the name of a kind, the rows' task, to contexts, tokens ``[n]`` each. All are cut to the length of
    the shortest, since the window is a part of what is held."""
    shortest = min(len(tokens) for some in contexts.values() for tokens in some)
    same = {"lambda": gates.trade_off, "threshold": threshold, "window": gates.window, "tokens": shortest}
    found = []
    for kind, some in contexts.items():
        for item, tokens in enumerate(tqdm(some, desc=kind, unit="context")):
            sizes = head_sizes(lm, gates, tokens[:shortest], threshold).tolist()
            for layer, of_layer in zip(lm.geometry.attention_layers, sizes, strict=True):
                for head, size in enumerate(of_layer):
                    options = json.dumps({"layer": layer, "head": head} | same)
                    found.append(("write_gate", options, kind, item, "cache_size", size))
    return tidy(found, SIZES, lm.name, tier, seed, paper="wg_kv")
