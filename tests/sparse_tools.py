"""A tiny random model of the Qwen4-exp class, whose attention reads what an index selects."""

from __future__ import annotations

import torch
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

BLOCK, BUDGET = 4, 16


def config(**changes) -> Qwen4ExpTextConfig:
    """8 layers, attention at 3 and 7, GQA 4/2, n-gram embeddings at layer 0, blocks of four, 16 selected tokens."""
    return Qwen4ExpTextConfig(
        **{
            "vocab_size": 320,
            "hidden_size": 64,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "hc_count": 2,
            "hc_lowrank": 16,
            "ple_layer_ids": [1],
            "ngram_vocab_size_base": 200,
            "heads_per_ngram": 2,
            "split_ngram_parts": 2,
            "eos_token_id": 0,
            "indexer_n_heads": 16,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": BUDGET,
            "indexer_compress_ratio": BLOCK,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            "max_position_embeddings": 1024,
            "initializer_range": 0.3,  # sharp outputs, so that answers react to what is kept
            "tie_word_embeddings": True,
            **changes,
        }
    )


def model() -> Qwen4ExpForCausalLM:
    """Random weights, also where the class begins with zeros."""
    torch.manual_seed(2)
    made = Qwen4ExpForCausalLM(config())
    for module in made.modules():
        if type(module).__name__.endswith(("PLELayer", "RMSNorm")):
            weight = module.conv1d.weight if hasattr(module, "conv1d") else module.weight
            torch.nn.init.normal_(weight, std=0.2)
    return made
