"""The paper's protocol: transformers' own forward, run eagerly, with only attention replaced (Appendix I.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import Cache, CacheLayerMixin

from kvrepro.profiling.settings import Shape

NAME = "kvrepro_profile"


def config_of(shape: Shape) -> Any:
    """The transformers config of a shape."""
    values = dict(shape.config)
    return AutoConfig.for_model(values.pop("model_type"), **values)


def random_model(shape: Shape, dtype: torch.dtype, device: str | torch.device, seed: int) -> nn.Module:
    """A causal language model of the shape with random weights, made on the device."""
    torch.manual_seed(seed)
    config = config_of(shape)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    for attention in (layer.self_attn for layer in model.model.layers):
        before_rotary = getattr(attention, "k_norm", attention.k_proj)
        before_rotary.register_forward_hook(_keep_keys(attention))
    return model.eval().requires_grad_(False)


def _keep_keys(attention: nn.Module):
    """Keep the keys before the rotary position, which only the write gate reads (§3.2)."""

    def hook(module, inputs, output):
        heads = output.reshape(*output.shape[:2], -1, attention.head_dim)
        attention.keys_before_rotary = heads.transpose(1, 2)

    return hook


class _Layer(CacheLayerMixin):
    """Hands the keys on with a mark that tells :func:`_attention` which arm holds the cache."""

    is_sliding = False

    def __init__(self, arm: Any, index: int):
        super().__init__()
        self.arm, self.index = arm, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the arm allocates."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
        """The new keys and values as they are; attention stores them."""
        key_states.kvrepro_profile = self
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Tokens seen, which drives the position ids."""
        return self.arm.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Lengths for transformers' mask code, whose mask is not used."""
        return self.arm.length + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


def _attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    layer = key.kvrepro_profile
    run = layer.arm.prefill if query.shape[2] > 1 else layer.arm.decode
    out = run(layer.index, query, key, value, module.keys_before_rotary)
    module.keys_before_rotary = None
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)


class Eager:
    """A transformers model as a prefill job and a decode job run it; ``layers`` are the indices of those that run."""

    def __init__(self, model: nn.Module, arm: Any, layers: range):
        self.model, self.arm = model, arm
        self._all = model.model.layers
        model.model.layers = nn.ModuleList([self._all[i] for i in layers])
        self._cache = Cache(layers=[_Layer(arm, i) for i in range(len(self._all))])

    def close(self) -> None:
        """Give the model all of its layers back."""
        self.model.model.layers = self._all

    @torch.inference_mode()
    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits after a context ``[n]``: ``[1, vocab]``, by one forward over all of it."""
        places = torch.arange(len(tokens), device=tokens.device)[None]
        out = self.model(
            tokens[None], position_ids=places, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        return out.logits[:, 0]

    @torch.inference_mode()
    def step(self, token: torch.Tensor) -> torch.Tensor:
        """The most likely token after ``token`` ``[batch]``, of the same shape."""
        out = self.model(token[:, None], past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self.arm.advance()
        return out.logits[:, 0].argmax(-1)
