"""Continuations sampled from the model itself, several documents at once (GateSight §2, Appendix B).

Each document is prefilled once; its cache is copied into one row per continuation, and the rows of all documents decode
as one batch, since on any device a decode step of many rows costs little more than one of few.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from kvrepro.cache.fork import block_index
from kvrepro.cache.ragged import EMPTY, RaggedLayer
from kvrepro.cache.recurrent import repeated
from kvrepro.errors import InputError
from kvrepro.labels.utility import ContinuationStates
from kvrepro.models.attention import observing
from kvrepro.models.capture import Prefill, decoder_layers, output_gates
from kvrepro.models.loading import LoadedModel
from kvrepro.models.sampling import draws_of, sample


@dataclass(frozen=True)
class Sampling:
    """How continuations are drawn (Appendix B): ``rollouts`` of at most ``rollout_tokens`` tokens a document."""

    rollouts: int
    rollout_tokens: int
    temperature: float
    top_p: float
    top_k: int

    def __post_init__(self):
        if min(self.rollouts, self.rollout_tokens, self.top_k) < 1 or self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise InputError(
                "labels: rollouts, rollout_tokens and top_k must be at least 1, temperature above 0, top_p in (0, 1]."
            )


@dataclass
class Rollout:
    """The continuations of one document; lists run over the attention layers."""

    tokens: list[list[int]]  #: an end-of-sequence token that was drawn is the last token of its continuation
    rows: list[ContinuationStates]
    gates: list[torch.Tensor] | None  #: [t, query_heads, head_dim], output gates of continuation 0
    outputs: list[torch.Tensor]  #: [t, hidden], what the attention modules returned for continuation 0


@torch.inference_mode()
def rollout(
    lm: LoadedModel, documents: list[Prefill], sampling: Sampling, seeds: list[int], names: list[str]
) -> list[Rollout]:
    """Sample continuations of every document and record what the utility needs.

    Draws are made on the CPU, one generator a document, so they depend on its seed only. Raises InputError naming the
    document when the model's logits are not finite.
    """
    m, steps = sampling.rollouts, sampling.rollout_tokens
    draws = torch.cat([draws_of(seed, m, steps) for seed in seeds]).to(lm.device)
    lengths = torch.tensor([p.n for p in documents], device=lm.device).repeat_interleave(m)
    logits = torch.stack([p.next_logits for p in documents]).repeat_interleave(m, 0)
    cache, start = _joined(lm, documents, m)
    eos = torch.tensor(sorted(lm.eos), dtype=torch.long, device=lm.device)
    tokens, done = [], torch.zeros(len(lengths), dtype=torch.bool, device=lm.device)
    with _recording(lm, m) as record:
        for step in range(steps):
            _check_finite(logits, names, m)
            tokens.append(sample(logits, draws[:, step], sampling))
            positions = (lengths + step)[:, None]
            out = lm.model(tokens[-1][:, None], position_ids=positions, past_key_values=cache, use_cache=True)
            logits = out.logits[:, -1].float()
            done |= torch.isin(tokens[-1], eos)
            if done.all():
                break
    drawn = torch.stack(tokens, 1)
    ends = torch.isin(drawn, eos)
    counts = torch.where(ends.any(1), ends.int().argmax(1) + 1, drawn.shape[1]).tolist()
    return [_document(lm, cache, p.n, start, record, drawn, counts, i, m) for i, p in enumerate(documents)]


def _check_finite(logits: torch.Tensor, names: list[str], m: int) -> None:
    bad = ~torch.isfinite(logits).all(-1)
    if bad.any():
        name = names[int(bad.nonzero()[0]) // m]
        raise InputError(f"{name}: the model's logits are not finite; check the weights and the number type.")


def _joined(lm: LoadedModel, documents: list[Prefill], m: int) -> tuple[Any, int]:
    """A cache of ``len(documents) * m`` rows, and the slot at which continuations start in its attention layers.

    Contexts of different lengths are padded to the longest. Within the ragged layers continuation tokens count from
    there, which is only their order; positions for RoPE are given to the model row by row.
    """
    g, longest = lm.geometry, max(p.n for p in documents)
    cache = DynamicCache(config=lm.model.config)
    for number, layer in enumerate(g.attention_layers):
        shape = (len(documents) * m, g.kv_heads, longest)
        keys = torch.zeros(*shape, g.head_dim, dtype=documents[0].keys[number].dtype, device=lm.device)
        values = torch.zeros_like(keys)
        positions = torch.full(shape, EMPTY, device=lm.device)
        for i, p in enumerate(documents):
            rows = slice(i * m, (i + 1) * m)
            keys[rows, :, : p.n], values[rows, :, : p.n] = p.keys[number], p.values[number]
            positions[rows, :, : p.n] = torch.arange(p.n, device=lm.device)
        index = None
        if g.index:
            raw = pad_sequence([p.index_keys[number] for p in documents], batch_first=True).repeat_interleave(m, 0)
            index = block_index(lm, layer, raw, positions[:, 0])
        cache.layers[layer] = RaggedLayer(keys, values, positions, seen=longest, block_index=index)
    for layer in g.gdn_layers:
        cache.layers[layer] = repeated([p.cache.layers[layer] for p in documents], m)
    return cache, longest


@dataclass
class _Record:
    """Per attention layer, one tensor a step: queries ``[rows, query_heads, head_dim]`` of every row and, with an
    index, which slots it read, ``[rows, slots]``; output gates ``[documents, query_heads, head_dim]`` and module
    outputs ``[documents, hidden]`` of each document's continuation 0.
    """

    queries: dict[int, list[torch.Tensor]]
    reads: dict[int, list[torch.Tensor]]
    gates: dict[int, list[torch.Tensor]]
    outputs: dict[int, list[torch.Tensor]]


@contextmanager
def _recording(lm: LoadedModel, m: int) -> Iterator[_Record]:
    """Record the decode steps inside, ``m`` rows a document."""
    layers = lm.geometry.attention_layers
    record = _Record(*({i: [] for i in layers} for _ in range(4)))

    def on_attention(module, query, key, *_):
        record.queries[module.layer_idx].append(query[:, :, 0].float())
        if lm.geometry.index:
            record.reads[module.layer_idx].append(module.reads.mask(slice(0, 1), key.shape[2])[:, 0, 0])

    def on_module(module, _, output):
        record.outputs[module.layer_idx].append(output[0][::m, 0].float())
        if gates:
            record.gates[module.layer_idx].append(gates[module.layer_idx][::m, 0])

    with observing(on_attention), output_gates(lm) as gates, ExitStack() as hooks:
        for i in layers:
            handle = decoder_layers(lm.model)[i].self_attn.register_forward_hook(on_module)
            hooks.callback(handle.remove)
        yield record


def _document(lm, cache, n: int, start: int, record: _Record, drawn, counts: list[int], i: int, m: int) -> Rollout:
    """Cut what belongs to document ``i``, of ``n`` tokens, out of the batch."""
    mine = slice(i * m, (i + 1) * m)
    counts = counts[mine]
    layers, t = lm.geometry.attention_layers, max(counts)
    own = slice(start, start + t)

    def reads(layer: int) -> torch.Tensor:
        steps = [pad(step[mine], (0, start + t - step.shape[1])) for step in record.reads[layer][:t]]
        return torch.cat([torch.stack(steps, 1)[..., part] for part in (slice(0, n), own)], -1)

    return Rollout(
        tokens=[row[:count].tolist() for row, count in zip(drawn[mine], counts, strict=True)],
        rows=[
            ContinuationStates(
                queries=torch.stack([q[mine] for q in record.queries[layer][:t]], 2),
                keys=cache.layers[layer].keys[mine, :, own].float(),
                values=cache.layers[layer].values[mine, :, own].float(),
                lengths=tuple(counts),
                reads=reads(layer) if lm.geometry.index else None,
            )
            for layer in layers
        ],
        gates=[torch.stack([x[i] for x in record.gates[layer][: counts[0]]]) for layer in layers]
        if lm.geometry.output_gate
        else None,
        outputs=[torch.stack([x[i] for x in record.outputs[layer][: counts[0]]]) for layer in layers],
    )
