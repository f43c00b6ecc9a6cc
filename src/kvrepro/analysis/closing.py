"""What attention heads are worth: next-token accuracy with some of their output gates closed (GateSight Appendix D)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pandas as pd
import torch
from tqdm import tqdm

from kvrepro.analysis.tidy import tidy
from kvrepro.errors import InputError
from kvrepro.models.capture import decoder_layers
from kvrepro.models.loading import LoadedModel

Heads = Mapping[int, Sequence[int]]  # attention layer (its number in the model) -> query heads


@contextmanager
def closed(lm: LoadedModel, heads: Heads) -> Iterator[None]:
    """Within the block the output gates of ``heads`` are zero: nothing of theirs reaches the output projection."""
    handles = []
    for layer, chosen in heads.items():
        if layer not in lm.geometry.attention_layers:
            raise InputError(f"layer {layer} of {lm.name} is no attention layer; name one of them.")

        def on_output(_, args, chosen=tuple(chosen)):
            output = args[0].unflatten(-1, (lm.geometry.query_heads, -1)).clone()
            output[..., list(chosen), :] = 0
            return output.flatten(-2), *args[1:]

        handles.append(decoder_layers(lm.model)[layer].self_attn.o_proj.register_forward_pre_hook(on_output))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def whole(lm: LoadedModel, layers: Sequence[int]) -> Heads:
    """All query heads of some attention layers."""
    return {layer: range(lm.geometry.query_heads) for layer in layers}


def lowest(gates: torch.Tensor, count: int, layers: Sequence[int]) -> Heads:
    """The ``count`` query heads with the smallest of the model's ``gates`` ``[attention_layers, query_heads]``."""
    return _by_layer(gates.flatten().argsort(stable=True)[:count].tolist(), gates.shape[1], layers)


def drawn(shape: tuple[int, int], count: int, layers: Sequence[int], seed: int) -> Heads:
    """``count`` random query heads of a model with ``shape`` (attention layers, query heads of each)."""
    generator = torch.Generator().manual_seed(seed)
    return _by_layer(torch.randperm(shape[0] * shape[1], generator=generator)[:count].tolist(), shape[1], layers)


def _by_layer(chosen: Sequence[int], query_heads: int, layers: Sequence[int]) -> Heads:
    found: dict[int, list[int]] = {}
    for i in chosen:
        found.setdefault(layers[i // query_heads], []).append(i % query_heads)
    return found


@torch.no_grad()
def next_token_accuracy(lm: LoadedModel, tokens: torch.Tensor) -> float:
    """Share of the tokens of a document ``[n]``, the first excepted, that the model puts first."""
    ids = tokens[None].to(lm.device)
    best = lm.model(input_ids=ids, use_cache=False).logits[0, :-1].argmax(-1)
    return (best == ids[0, 1:]).double().mean().item()


def closing_rows(
    lm: LoadedModel,
    documents: Mapping[str, Sequence[torch.Tensor]],
    gates: torch.Tensor,
    share: float,
    draws: int,
    tier: str,
    seed: int = 0,
) -> pd.DataFrame:
    """Tidy rows, experiment ``closed_heads``: next-token accuracy of each document with all heads (method ``open``),
    without the ``share`` of query heads whose mean gate is lowest (``lowest``), and without as many random ones, for
    each of ``draws`` draws (``random``, the draw in the options).

    documents: corpus -> tokens ``[n]`` each, none of which ``gates`` ``[attention_layers, query_heads]`` were measured
    on. The paper closes 48 of 384 heads. Raises InputError when the share is no head or all of them.
    """
    layers, count = lm.geometry.attention_layers, round(share * gates.numel())
    if not 0 < count < gates.numel():
        raise InputError(f"gates.share: {share:g} of {gates.numel()} query heads is {count}; close some but not all.")
    arms = [("open", {}, {}), ("lowest", {"heads": count}, lowest(gates, count, layers))]
    arms += [
        ("random", {"heads": count, "draw": i}, drawn(tuple(gates.shape), count, layers, seed + i))
        for i in range(draws)
    ]
    found = []
    for method, options, heads in tqdm(arms, desc="closed heads"):
        with closed(lm, heads):
            found += [
                (method, json.dumps(options), corpus, i, "next_token_accuracy", next_token_accuracy(lm, tokens))
                for corpus, texts in documents.items()
                for i, tokens in enumerate(texts)
            ]
    return tidy(found, "closed_heads", lm.name, tier, seed)
