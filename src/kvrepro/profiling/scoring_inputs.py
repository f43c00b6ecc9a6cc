"""What scoring reads, made at random at a model's true shape: signals, keys, queries, and methods ready to score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from kvrepro.estimators.features import columns
from kvrepro.estimators.mlp import Estimators, Heads
from kvrepro.kernels.gdn_signals import gdn_signals
from kvrepro.methods.eviction.base import Eviction
from kvrepro.methods.eviction.gatesight import GateSight
from kvrepro.methods.eviction.keydiff import KeyDiff
from kvrepro.methods.eviction.snapkv import SnapKV
from kvrepro.methods.eviction.triattention import TriAttention
from kvrepro.methods.query_statistics import QueryStatistics
from kvrepro.models.capture import SIGNALS, Prefill
from kvrepro.models.geometry import Geometry
from kvrepro.profiling.scoring import Shape

QUERIES = 64  #: last tokens whose queries a prefill keeps
ROOM = 2**34  #: bytes of value vectors that are held at a time


def geometry(shape: Shape) -> Geometry:
    """The geometry of a shape, as methods read it."""
    return Geometry(
        model_type="qwen3_5_text",
        layers=shape.layers,
        attention_layers=shape.attention_layers,
        gdn_layers=shape.gdn_layers,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rotary_dim=shape.rotary_dim,
        gdn_heads=shape.gdn_heads,
        gdn_head_dim=shape.gdn_head_dim,
        hidden=shape.hidden,
        vocab=32,
        output_gate=True,
        qk_norm=True,
        max_positions=2**20,
    )


def random_prefill(shape: Shape, tokens: int, device: str, dtype: torch.dtype, seed: int = 0) -> Prefill:
    """What a prefill of ``tokens`` tokens leaves behind, without values, gates and cache, which no scorer here reads.

    Keys and queries are of ``dtype``; signals are float32 and in the ranges of write gates, log-decays and magnitudes.
    """
    g = geometry(shape)
    normal = partial(torch.randn, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(seed))
    signals = torch.empty(len(g.gdn_layers), tokens, g.gdn_heads, SIGNALS, device=device)
    for layer in signals:  # one by one: temporaries of all would not fit beside them
        layer.uniform_(generator=torch.Generator(device).manual_seed(seed))
        layer[..., 1].neg_()
    return Prefill(
        tokens=torch.zeros(tokens, dtype=torch.long),
        protected=0,
        geometry=g,
        keys=[normal(g.kv_heads, tokens, g.head_dim) for _ in g.attention_layers],
        values=[],
        queries=[normal(g.query_heads, min(QUERIES, tokens), g.head_dim) for _ in g.attention_layers],
        signals=signals,
        output_gates=None,
        cache=None,
        next_logits=torch.zeros(0),
    )


@dataclass(frozen=True)
class LayerOutputs:
    """What the GDN layers compute in a forward and signals are made from; the first axis runs over them.

    ``values`` are of as many layers as were held, which the others share in turn.
    """

    beta: torch.Tensor  #: [layers, n, heads], of the dtype of the pass
    gate: torch.Tensor  #: [layers, n, heads]
    values: list[torch.Tensor]  #: [n, heads, head_dim]
    a_log: torch.Tensor  #: [layers, heads] float32
    dt_bias: torch.Tensor  #: [layers, heads]

    def gathered(self) -> torch.Tensor:
        """The signals of all layers in a tensor of their own, one kernel a layer: ``[layers, n, heads, 3]`` float32."""
        signals = torch.empty(*self.beta.shape, SIGNALS, device=self.beta.device)
        for layer, out in enumerate(signals):
            values = self.values[layer % len(self.values)]
            gdn_signals(self.beta[layer], self.gate[layer], values, self.a_log[layer], self.dt_bias[layer], out)
        return signals


def random_layers(
    shape: Shape, tokens: int, device: str, dtype: torch.dtype, room: int = ROOM, seed: int = 0
) -> LayerOutputs:
    """Random outputs of the GDN layers; value vectors of as many layers as ``room`` bytes hold, at least of one."""
    layers, heads = len(shape.gdn_layers), shape.gdn_heads
    normal = partial(torch.randn, device=device, generator=torch.Generator(device).manual_seed(seed))
    size = tokens * heads * shape.gdn_head_dim * dtype.itemsize
    return LayerOutputs(
        beta=normal(layers, tokens, heads, dtype=dtype),
        gate=normal(layers, tokens, heads, dtype=dtype),
        values=[
            normal(tokens, heads, shape.gdn_head_dim, dtype=dtype) for _ in range(max(1, min(layers, room // size)))
        ],
        a_log=normal(layers, heads),
        dt_bias=normal(layers, heads),
    )


def random_estimators(shape: Shape, settings: Mapping[str, int], seed: int = 0) -> Estimators:
    """Estimators of the published shape (§4.1) with random weights; ``settings`` gives window and hidden units."""
    g = geometry(shape)
    read = columns(g, settings["window"])
    layers, width = read.shape
    real = (read < len(g.gdn_layers) * g.gdn_heads * SIGNALS + 3)[:, :, None, None]  # not the padding
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    heads = Heads(
        columns=read,
        mean=torch.full((layers, width), 0.1),
        std=torch.full((layers, width), 0.5),
        w1=normal(layers, width, g.kv_heads, settings["hidden"]) * real * width**-0.5,
        b1=normal(layers, g.kv_heads, settings["hidden"]),
        w2=normal(layers, g.kv_heads, settings["hidden"]) * settings["hidden"] ** -0.5,
        b2=normal(layers, g.kv_heads),
    )
    return Estimators(heads, None, g, "", shape.name, [], {})


def ready(method: str, shape: Shape, settings: Mapping[str, int]) -> Eviction:
    """A method as the evaluation uses it, with random estimators or statistics in the place of trained ones."""
    if method == "keydiff":
        return KeyDiff()
    if method == "snapkv":
        return SnapKV()
    if method == "triattention":
        found = TriAttention(query_statistics="")
        found.use(_statistics(shape))
        return found
    found = GateSight(estimators="")
    found.use(random_estimators(shape, settings))
    return found


def _statistics(shape: Shape) -> QueryStatistics:
    g = geometry(shape)
    size = len(g.attention_layers), g.query_heads, g.head_dim // 2
    mean = torch.randn(size, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    frequencies = torch.zeros(g.head_dim // 2)
    rotated = g.rotary_dim // 2
    frequencies[:rotated] = shape.rope_theta ** (-torch.arange(rotated) / rotated)
    return QueryStatistics(mean, mean.abs() + 0.1, frequencies)
