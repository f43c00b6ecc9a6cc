"""One prefill of a context and everything the methods, labels and analyses read from it (GateSight §2).

Signals come from forward hooks and from the attention observer; neither changes the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from kvrepro.errors import InputError
from kvrepro.models.attention import observing
from kvrepro.models.geometry import Geometry
from kvrepro.models.loading import LoadedModel

#: The order of the signals of a GDN head (Eq. 1): write gate beta, log-decay g, write magnitude ||v||.
WRITE_GATE, LOG_DECAY, MAGNITUDE = range(3)
SIGNALS = 3


@dataclass
class Prefill:
    """What one forward pass over a context of ``n`` tokens leaves behind; lists run over the attention layers."""

    tokens: torch.Tensor  #: [n]
    protected: int  #: leading tokens that every method keeps
    geometry: Geometry
    keys: list[torch.Tensor]  #: [kv_heads, n, head_dim], as cached: after norm and RoPE
    values: list[torch.Tensor]  #: [kv_heads, n, head_dim]
    queries: list[torch.Tensor]  #: [query_heads, w, head_dim], after norm and RoPE, of the last w tokens
    signals: torch.Tensor | None  #: [gdn_layers, n, gdn_heads, 3] float32: write gate, log-decay, write magnitude
    output_gates: list[torch.Tensor] | None  #: [query_heads, n] float32, sigmoid output gate averaged over head_dim
    cache: Any  #: the model's own cache after the context
    next_logits: torch.Tensor  #: [vocab] float32
    index_keys: list[torch.Tensor] | None = None  #: of a model with an index: [n, head_dim of the index], raw
    reads: list[torch.Tensor] | None = None  #: and [w, n] bool, what the last w tokens read

    @property
    def n(self) -> int:
        """Length of the context in tokens."""
        return len(self.tokens)

    def unread(self, layer: int, rows: int) -> torch.Tensor:
        """What the last ``rows`` tokens do not read in the ``layer``-th attention layer, ``[rows, n]`` bool: later
        entries, and those that an index did not select."""
        late = torch.ones(rows, self.n, dtype=torch.bool, device=self.keys[layer].device).triu(self.n - rows + 1)
        return late if self.reads is None else late | ~self.reads[layer][-rows:]


def decoder(model: Any) -> Any:
    """The decoder of a causal language model, multimodal wrappers included."""
    body = model.get_decoder() if hasattr(model, "get_decoder") else model.model
    return getattr(body, "language_model", body)


def group_gates(prefill: Prefill, part: slice = slice(None)) -> torch.Tensor | None:
    """Largest output gate of each GQA group, averaged over the tokens of ``part``: ``[attention_layers, kv_heads]``
    (GateSight §4.2). None for a model without output gates."""
    if prefill.output_gates is None:
        return None
    kv_heads = prefill.geometry.kv_heads
    return torch.stack([g[:, part].unflatten(0, (kv_heads, -1)).amax(1).mean(-1) for g in prefill.output_gates])


def decoder_layers(model: Any) -> Any:
    """The ModuleList of decoder layers of a causal language model."""
    return decoder(model).layers


class RotaryPositions:
    """The positions that forwards rotated queries and keys to, at most ``room`` tokens of each row, in their order.

    They are written where they were seen without waiting for the device, so that it also works in a CUDA graph.
    """

    def __init__(self, lm: LoadedModel, room: int):
        self._room, self._seen = room, None
        self._slot = torch.zeros(1, dtype=torch.long, device=lm.device)

    def note(self, positions: torch.Tensor) -> None:
        """Add the positions ``[rows, t]``, or ``[axes, rows, t]`` of a multimodal model, of one forward."""
        positions = positions.reshape(-1, positions.shape[-1])
        if self._seen is None:
            self._seen = positions.new_full((len(positions), self._room), -1)
        t = positions.shape[1]
        self._seen.index_copy_(1, self._slot + torch.arange(t, device=self._slot.device), positions)
        self._slot.add_(t)

    def of_rows(self, rows: int) -> torch.Tensor:
        """What was seen, ``[axes, rows, room]``, on the CPU; -1 where there was nothing yet."""
        return self._seen.cpu().view(-1, rows, self._room)


@contextmanager
def rotary_positions(lm: LoadedModel, room: int) -> Iterator[RotaryPositions]:
    """Note the positions that the forwards inside rotate queries and keys to."""
    seen = RotaryPositions(lm, room)

    def on_rotary(_, args, kwargs):
        positions = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
        seen.note(positions[..., -args[0].shape[1] :])  # a model with an index turns past positions again

    handle = decoder(lm.model).rotary_emb.register_forward_pre_hook(on_rotary, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def gdn_signals(lm: LoadedModel) -> Iterator[dict[int, dict[str, torch.Tensor]]]:
    """Collect per GDN layer ``beta``, ``g`` and ``norm`` (``[batch, t, heads]`` float32) of the forwards inside.

    β and g follow from the outputs of the two small projections; the value vector is the convolution's output, which
    is recomputed here from its input projection because the module does not expose it (Eq. 1).
    """
    seen: dict[int, dict[str, torch.Tensor]] = {}
    handles = []

    def hook_layer(index: int, module: Any) -> None:
        store = seen.setdefault(index, {})

        def on_b(_, __, out):
            store["beta"] = out.float().sigmoid()

        def on_a(_, __, out):
            store["g"] = -module.A_log.float().exp() * torch.nn.functional.softplus(out.float() + module.dt_bias)

        def on_qkv(_, __, out):
            x = out.transpose(1, 2)[:, -module.value_dim :]  # the value channels
            weight = module.conv1d.weight[-module.value_dim :]
            x = torch.nn.functional.pad(x, (module.conv_kernel_size - 1, 0))
            v = torch.nn.functional.silu(torch.nn.functional.conv1d(x, weight, groups=weight.shape[0]))
            store["norm"] = v.transpose(1, 2).unflatten(-1, (-1, module.head_v_dim)).float().norm(dim=-1)

        handles.append(module.in_proj_b.register_forward_hook(on_b))
        handles.append(module.in_proj_a.register_forward_hook(on_a))
        handles.append(module.in_proj_qkv.register_forward_hook(on_qkv))

    layers = decoder_layers(lm.model)
    for i in lm.geometry.gdn_layers:
        hook_layer(i, layers[i].linear_attn)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def output_gates(lm: LoadedModel) -> Iterator[dict[int, torch.Tensor]]:
    """Collect per attention layer the sigmoid output gate, ``[batch, t, query_heads, head_dim]`` float32."""
    seen: dict[int, torch.Tensor] = {}
    handles = []
    layers = decoder_layers(lm.model)
    if lm.geometry.output_gate:
        for i in lm.geometry.attention_layers:

            def on_q(_, __, out, index=i):
                heads = out.unflatten(-1, (lm.geometry.query_heads, 2 * lm.geometry.head_dim))
                seen[index] = heads[..., lm.geometry.head_dim :].float().sigmoid()

            handles.append(layers[i].self_attn.q_proj.register_forward_hook(on_q))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def prefill(lm: LoadedModel, tokens: torch.Tensor, protected: int = 0, query_window: int = 64) -> Prefill:
    """Run the model once over ``tokens`` ``[n]`` and keep what the methods read.

    ``query_window`` is the number of last tokens whose queries are kept. Raises InputError when the context
    is empty, shorter than the protected prefix, or longer than the model's limit.
    """
    n, g = len(tokens), lm.geometry
    if n == 0:
        raise InputError("the context is empty; give at least one token.")
    if protected >= n:
        raise InputError(f"the context has {n} tokens and its protected prefix {protected}; give a longer context.")
    if n > g.max_positions:
        raise InputError(f"the context has {n} tokens but {lm.name} takes {g.max_positions}; shorten it.")
    queries: dict[int, torch.Tensor] = {}
    reads: dict[int, torch.Tensor] = {}

    def on_attention(module, query, *_):
        queries[module.layer_idx] = query[0, :, -query_window:].clone()
        if g.index:
            reads[module.layer_idx] = module.reads.mask(slice(max(n - query_window, 0), n), n)[0, 0]

    cache = DynamicCache(config=lm.model.config)
    with gdn_signals(lm) as gdn, output_gates(lm) as gates, observing(on_attention):
        out = lm.model(input_ids=tokens[None].to(lm.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
    attention = g.attention_layers
    signals = None
    if g.gdn_layers:
        order = {WRITE_GATE: "beta", LOG_DECAY: "g", MAGNITUDE: "norm"}
        signals = torch.stack(
            [torch.stack([gdn[i][order[s]][0] for s in range(SIGNALS)], dim=-1) for i in g.gdn_layers]
        )
    return Prefill(
        tokens=tokens,
        protected=protected,
        geometry=g,
        keys=[cache.layers[i].keys[0] for i in attention],
        values=[cache.layers[i].values[0] for i in attention],
        queries=[queries[i] for i in attention],
        signals=signals,
        output_gates=[gates[i][0].mean(-1).T for i in attention] if gates else None,
        cache=cache,
        next_logits=out.logits[0, -1].float(),
        index_keys=[cache.layers[i].indexer_keys[0] for i in attention] if g.index else None,
        reads=[reads[i] for i in attention] if g.index else None,
    )
