"""Passes over a hybrid model at its true shape with random weights: the prefill, and KVzip's repetition of a context.

The decoder repeats one group of layers (Gated DeltaNet layers and the attention layer that follows them), so one group
holds weights, and runs as often as the model has groups, each time with caches of its own. What is left out is the
embedding and the output head. Attention is dense, by the fastest kernel at hand: a chunk looks at the cache, all of
it, and causally at itself, and both halves are joined by their sums of exponentials. Nothing is copied or masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache, Qwen3_5TextConfig
from transformers.cache_utils import DynamicLayer

from kvrepro.cache.recurrent import repeated
from kvrepro.errors import InputError
from kvrepro.profiling.clock import Clock, median_seconds
from kvrepro.profiling.scoring import Shape

NAME = "kvrepro_repetition"
CHUNK = 2000  #: context tokens that KVzip repeats at a time, as the published code does
PROMPT = 32  #: tokens fed before each part: the prompt that asks for it, its reminder, what closes a user's turn
PREFILL_CHUNK = 8192  #: tokens of a chunk of the prefill
aten = torch.ops.aten

#: Dense attention with the logarithms of its sums, ``(q, k, v, causal, scaling) -> (output, lse)``, by name.
KERNELS: dict[str, Callable] = {
    "cudnn": lambda q, k, v, causal, scaling: aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scaling
    )[:2],
    "flash_attention_2": lambda q, k, v, causal, scaling: aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, causal, False, scale=scaling
    )[:2],
    "cpu": lambda q, k, v, causal, scaling: aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scaling
    )[:2],
}


def fastest_kernel(shape: Shape, device: str | torch.device, tokens: int = 16384) -> str:
    """The name of the kernel with which a chunk attends to ``tokens`` entries and itself first; a CPU's own there.

    A kernel that fails, or whose sums are not those of a product in float32, is left out and named. InputError when
    none is left.
    """
    if torch.device(device).type == "cpu":
        return "cpu"
    heads, t = shape.query_heads, CHUNK + PROMPT
    q = torch.randn(1, heads, t, shape.head_dim, device=device, dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, shape.kv_heads, tokens + t, shape.head_dim, device=device, dtype=torch.bfloat16)
    context, own, scaling = (k[:, :, t:], v[:, :, t:]), (k[:, :, :t], v[:, :, :t]), shape.head_dim**-0.5
    times = {}
    for name in ("cudnn", "flash_attention_2"):
        try:
            lse = attend(q, *own, context, scaling, name)[1][0, 0, -1]  # a row that sees everything
            expected = (k[0, 0].float() @ q[0, 0, -1].float() * scaling).logsumexp(0)
            if not torch.isclose(lse, expected, atol=1e-2):
                raise RuntimeError(f"its logarithm of the sums is {lse:.4f}, not {expected:.4f}")
            times[name] = median_seconds(lambda name=name: attend(q, *own, context, scaling, name), device, 3, 1)
        except RuntimeError as error:
            print(f"{name}: left out, {str(error).splitlines()[0][:120]}", flush=True)
    if not times:
        raise InputError("No dense attention kernel takes heads of this width here.")
    return min(times, key=times.get)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: tuple[torch.Tensor, torch.Tensor] | None,
    scaling: float, kernel: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of a chunk's queries to a context and, causally, to the chunk itself.

    q ``[1, query_heads, t, d]``, k and v ``[1, kv_heads, t, d]``, context keys and values ``[1, kv_heads, n, d]``.
    Returns the output ``[1, query_heads, t, d]`` and the logarithms of the sums ``[1, query_heads, t]`` float32.
    """
    run, heads, kv_heads = KERNELS[kernel], q.shape[1], k.shape[1]
    own = [x.repeat_interleave(heads // kv_heads, 1) for x in (k, v)]
    out, lse = run(q, *own, True, scaling)
    lse = lse.reshape(q.shape[:3])
    if context is None:
        return out, lse
    grouped = q.reshape(1, kv_heads, -1, q.shape[-1])  # the query heads of a group as rows: one read of the cache
    before, before_lse = run(grouped, *context, False, scaling)
    before, before_lse = before.reshape(q.shape), before_lse.reshape(q.shape[:3])
    both = torch.logaddexp(lse, before_lse)
    share = (before_lse - both).exp()[..., None].to(out.dtype)
    return torch.lerp(out, before, share), both


def received(q: torch.Tensor, keys: torch.Tensor, lse: torch.Tensor, scaling: float) -> torch.Tensor:
    """Largest attention weight of each entry over the rows of its GQA group, ``[kv_heads, m]`` float32.

    q ``[1, query_heads, t, d]``, keys ``[1, kv_heads, m, d]``, lse ``[1, query_heads, t]`` of all that a row sees.
    """
    kv_heads = keys.shape[1]
    rows, columns = q[0].reshape(kv_heads, -1, q.shape[-1]), keys[0].transpose(1, 2)
    if q.is_cuda and q.dtype != torch.float32:
        logits = torch.bmm(rows, columns, out_dtype=torch.float32)
    else:
        logits = rows.float() @ columns.float()
    return logits.mul_(scaling).sub_(lse[0].reshape(kv_heads, -1, 1)).amax(1).exp_()


class _Context(DynamicLayer):
    """The cache of an attention layer as a pass sees it: ``length`` of its entries; a prefill writes the next ones."""

    def __init__(self, passes: Passes, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.passes, self.keys, self.values, self.is_initialized = passes, keys, values, True
        self.length, self.writes, self.part = 0, False, slice(0)
        self.scores: torch.Tensor | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """The chunk's own keys and values, the keys marked with where the context is."""
        key_states.kvrepro_context = self
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Entries that are seen."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Lengths for transformers' mask code, whose mask is not used."""
        return self.length + query_length, 0


def _attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    layer: _Context = key.kvrepro_context
    passes, n = layer.passes, layer.length
    with passes.clock.span("attention"):
        context = (layer.keys[:, :, :n], layer.values[:, :, :n]) if n else None
        out, lse = attend(query, key, value, context, scaling, passes.kernel)
    if layer.writes:
        end = n + key.shape[2]
        layer.keys[:, :, n:end], layer.values[:, :, n:end] = key, value
    else:
        with passes.clock.span("received"):
            found = received(query, layer.keys[:, :, layer.part], lse, scaling)
            layer.scores[:, layer.part] = found
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)


@dataclass
class Passes:
    """One group of layers with random weights and the caches of ``groups`` of them, filled at random."""

    shape: Shape
    device: str
    dtype: torch.dtype
    tokens: int
    groups: int
    kernel: str
    seed: int = 0
    clock: Clock = field(init=False)

    def __post_init__(self):
        self.clock = Clock(self.device)
        self._model = _group(self.shape, self.device, self.dtype, self.seed)
        s = self.shape
        room = self.tokens, s.head_dim
        generator = torch.Generator(self.device).manual_seed(self.seed)
        new = {"device": self.device, "dtype": self.dtype, "generator": generator}
        self._caches = []
        for _ in range(self.groups):
            cache = DynamicCache(config=self._model.config)
            cache.layers[-1] = _Context(self, *torch.randn(2, 1, s.kv_heads, *room, **new))
            self._caches.append(cache)
        self._inputs = torch.randn(1, PREFILL_CHUNK, s.hidden, **new)

    @torch.inference_mode()
    def prefill(self, chunk: int = PREFILL_CHUNK) -> list[Any]:
        """A forward over the context in chunks, which fills the caches; returns what KVzip starts from."""
        for cache in self._caches:
            for index in range(len(cache.layers) - 1):
                cache.layers[index] = DynamicCache(config=self._model.config).layers[index]
            cache.layers[-1].length, cache.layers[-1].writes = 0, True
        for start in range(0, self.tokens, chunk):
            self._feed(self._caches, min(chunk, self.tokens - start), start)
            for cache in self._caches:
                cache.layers[-1].length = min(start + chunk, self.tokens)
        return self._caches

    @torch.inference_mode()
    def repeat(self, chunk: int = CHUNK) -> list[torch.Tensor]:
        """KVzip's pass: each part of the context is fed after it, and what its entries receive is scored.

        Every part starts from the state after the context. Returns per group ``[kv_heads, tokens]`` float32.
        """
        s = self.shape
        scores = [torch.zeros(s.kv_heads, self.tokens, device=self.device) for _ in self._caches]
        for start in range(0, self.tokens, chunk):
            part = slice(start, min(start + chunk, self.tokens))
            fresh = []
            for cache, found in zip(self._caches, scores, strict=True):
                context: _Context = cache.layers[-1]
                context.length, context.writes, context.part, context.scores = self.tokens, False, part, found
                copied = DynamicCache(config=self._model.config)
                copied.layers[:-1] = [repeated([layer], 1) for layer in cache.layers[:-1]]
                copied.layers[-1] = context
                fresh.append(copied)
            self._feed(fresh, PROMPT + part.stop - start, self.tokens)
        return scores

    def _feed(self, caches: list[Any], t: int, position: int) -> None:
        """``t`` vectors through all groups, at positions from ``position`` on."""
        places = torch.arange(position, position + t, device=self.device)[None]
        x = self._inputs[:, :t]
        for cache in caches:
            x = self._model(
                inputs_embeds=x, position_ids=places, past_key_values=cache, use_cache=True
            ).last_hidden_state


def _group(shape: Shape, device: str, dtype: torch.dtype, seed: int) -> Any:
    """One group of layers of the Qwen3.5 class, without an embedding that would count."""
    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(
        vocab_size=32,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.attention_every,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": shape.rope_theta,
            "partial_rotary_factor": shape.rotary_dim / shape.head_dim,
        },
        linear_num_key_heads=shape.gdn_key_heads,
        linear_num_value_heads=shape.gdn_heads,
        linear_key_head_dim=shape.gdn_head_dim,
        linear_value_head_dim=shape.gdn_head_dim,
        layer_types=["linear_attention"] * (shape.attention_every - 1) + ["full_attention"],
        max_position_embeddings=2**20,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    return model.model.eval().requires_grad_(False)
