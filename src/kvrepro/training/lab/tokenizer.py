"""The lab models' tokenizer: byte-level BPE with single digits, trained on the training text and sample prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kvrepro.errors import InputError

END = "<|endoftext|>"  # id 0: ends an answer, separates documents
MAX_VOCABULARY = 8192
POSITIONS = 16384


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer of ``vocabulary`` entries; ``<|endoftext|>`` is entry 0."""
    if not 512 <= vocabulary <= MAX_VOCABULARY:
        raise InputError(f"vocab_size {vocabulary} is impossible for a lab tokenizer; choose 512 to {MAX_VOCABULARY}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """``tokenizer.json`` and ``tokenizer_config.json``, loadable with ``AutoTokenizer.from_pretrained``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
