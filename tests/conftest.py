"""Shared fixtures: tiny random models of both architecture classes, saved and loaded as any model is."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # must be set before a kernel is decorated

import pytest
import sparse_tools
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from kvrepro.models.loading import LoadedModel, load

torch.set_num_threads(1)
EOS = "<|endoftext|>"
VOCAB = 320


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    """A byte-level BPE tokenizer of 320 entries in transformers' format."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tok.train_from_iterator(["The grass is green. The sky is blue. What is the special magic number?"] * 50, trainer)
    path = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tok, eos_token=EOS).save_pretrained(path)
    return path


def _save(model, tokenizer_dir, path) -> None:
    PreTrainedTokenizerFast.from_pretrained(tokenizer_dir).save_pretrained(path)
    model.generation_config.eos_token_id = 0
    model.save_pretrained(path)


@pytest.fixture(scope="session")
def tiny_hybrid_dir(tokenizer_dir, tmp_path_factory):
    """Qwen3.5 class: 8 layers, attention at 3 and 7, GQA 4/2, output gate, partial rotary."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.3,  # sharp outputs, so that answers react to what is kept
        tie_word_embeddings=True,
    )
    path = tmp_path_factory.mktemp("tiny-hybrid")
    _save(Qwen3_5ForCausalLM(config), tokenizer_dir, path)
    return path


@pytest.fixture(scope="session")
def tiny_dense_dir(tokenizer_dir, tmp_path_factory):
    """Qwen3 class: 3 layers, GQA 4/2, q/k-norm."""
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.3,  # sharp outputs, so that answers react to what is kept
        tie_word_embeddings=True,
    )
    path = tmp_path_factory.mktemp("tiny-dense")
    _save(Qwen3ForCausalLM(config), tokenizer_dir, path)
    return path


@pytest.fixture(scope="session")
def tiny_hybrid(tiny_hybrid_dir) -> LoadedModel:
    return load(str(tiny_hybrid_dir))


@pytest.fixture(scope="session")
def tiny_dense(tiny_dense_dir) -> LoadedModel:
    return load(str(tiny_dense_dir))


@pytest.fixture(scope="session")
def tiny_sparse_dir(tokenizer_dir, tmp_path_factory):
    """Qwen4-exp class, see :mod:`sparse_tools`."""
    path = tmp_path_factory.mktemp("tiny-sparse")
    _save(sparse_tools.model(), tokenizer_dir, path)
    return path


@pytest.fixture(scope="session")
def tiny_sparse(tiny_sparse_dir) -> LoadedModel:
    return load(str(tiny_sparse_dir))


@pytest.fixture
def tokens():
    """A context of 100 random token ids, fixed."""
    return torch.randint(1, VOCAB, (100,), generator=torch.Generator().manual_seed(7))
