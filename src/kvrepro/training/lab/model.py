"""Builds a lab model (a stock transformers class) from its configuration, with its initial weights."""

from __future__ import annotations

import math

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvrepro.errors import unknown

MODEL_TYPES = ("qwen3", "qwen3_5_text")
DT_RANGE = (1e-3, 1e-1)  # time steps of the Gated DeltaNet's decay at the start, drawn log-uniformly


def model_config(settings: dict, eos_token_id: int):
    """transformers configuration from the ``model:`` block of a lab config (its keys are transformers' own)."""
    settings = dict(settings)
    kind = settings.pop("model_type")
    if kind not in MODEL_TYPES:
        raise unknown("model_type", kind, MODEL_TYPES, "model.model_type")
    return AutoConfig.for_model(
        kind, **settings, eos_token_id=eos_token_id, bos_token_id=None, tie_word_embeddings=True
    )


def build_model(settings: dict, eos_token_id: int, seed: int):
    """A float32 model with its initial weights, a function of the settings and the seed.

    Initialised as in transformers except ``dt_bias``: transformers sets it to ones, which forgets within a few tokens;
    here the time step is log-uniform in [0.001, 0.1] and ``dt_bias`` its inverse softplus.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(model_config(settings, eos_token_id), dtype=torch.float32)
    low, high = (math.log(bound) for bound in DT_RANGE)
    with torch.no_grad():
        for layer in model.model.layers:
            if hasattr(layer, "linear_attn"):
                bias = layer.linear_attn.dt_bias
                step = torch.exp(torch.rand(bias.shape) * (high - low) + low)
                bias.copy_(step + torch.log(-torch.expm1(-step)))
    return model
