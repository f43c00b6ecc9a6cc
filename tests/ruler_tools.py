"""What the RULER tests share: a tokenizer trained in a second, and small offline sources."""

from __future__ import annotations

import functools
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.ruler import definitions

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def words(n: int = 2400) -> tuple[str, ...]:
    """Distinct pronounceable words."""
    rng, found = random.Random(5), {}
    while len(found) < n:
        found["".join(rng.choice("bdfglmnprst") + rng.choice("aeiou") for _ in range(rng.choice((2, 3))))] = None
    return tuple(found)


@functools.cache
def prose() -> tuple[str, ...]:
    """Two thousand sentences of three to twelve words."""
    rng = random.Random(6)
    return tuple(" ".join(rng.choices(words(), k=rng.randint(3, 12))).capitalize() + "." for _ in range(2000))


def offline(split: str | None = "eval") -> ruler.Sources:
    return ruler.offline(prose(), words(), split)


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 1,000 entries, digits split, with a chat template."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    quoted = [definitions.task(name).template + definitions.task(name).answer_prefix for name in ruler.TASKS]
    quoted += [str(text) for text in definitions.SENTENCES.values()]
    tok.train_from_iterator([*prose()[:500], *quoted * 20], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|endoftext|>", chat_template=CHAT)


def text_of(example) -> str:
    """The whole prompt."""
    return example.instruction + example.context + example.questions[0].text
