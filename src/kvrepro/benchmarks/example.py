"""The example every benchmark produces, and how it becomes token ids.

An example has one context that is prefilled and compressed once, and one or more questions that are asked of the
compressed cache (GateSight §2: the eviction cannot see the questions).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from kvrepro.errors import InputError
from kvrepro.models.chat import around_user_turn
from kvrepro.models.tokens import sha256_tokens

PROTECTED_MAX = 256  # GateSight §2: every method keeps an instruction prefix of at most 256 tokens


@dataclass(frozen=True)
class Sampling:
    """How the answer to a question is drawn; ``seed`` is the question's own: all methods have the same draws."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


@dataclass(frozen=True)
class Question:
    """One question of a context. ``text`` ends with ``answer_prefix``, which a chat template puts into the answer.

    ``subtask`` names the part of a mixed task that it belongs to; the parts of a task weigh the same. An answer is
    decoded greedily where there is no ``sampling``.
    """

    text: str
    references: tuple[str, ...]
    max_new_tokens: int
    answer_prefix: str = ""
    subtask: str = ""
    sampling: Sampling | None = None

    def __post_init__(self):
        if not self.text.endswith(self.answer_prefix):
            raise InputError(f"a question must end with its answer prefix {self.answer_prefix!r}; got {self.text!r}.")


@dataclass(frozen=True)
class Example:
    """One context of a benchmark with its questions; ``info`` holds what a scorer or a table needs besides, ``chat``
    whether the benchmark wants it in a chat of a model that has a template.

    ``unit`` is the number of the task's first item that asks the same question, or about the same context: these say
    much the same about a method and are resampled together. None: no other item does.
    """

    benchmark: str
    task: str
    item: int
    seed: int
    instruction: str
    context: str
    questions: tuple[Question, ...]
    info: dict = field(default_factory=dict)
    chat: bool = True
    unit: int | None = None


@dataclass(frozen=True)
class Prompt:
    """Token ids of an example: ``instruction + context`` is prefilled once, each question follows it."""

    instruction: list[int]
    context: list[int]
    questions: list[list[int]]
    text_sha256: str
    token_sha256: str

    @property
    def prefix(self) -> list[int]:
        """Ids that are prefilled and compressed."""
        return self.instruction + self.context

    @property
    def protected(self) -> int:
        """Length of the instruction prefix that every method keeps, in tokens."""
        return min(PROTECTED_MAX, len(self.instruction))


def render(example: Example, tokenizer, chat: bool = False) -> Prompt:
    """Token ids of an example. The parts are tokenised one by one, so the same context has the same ids whatever is
    asked; with ``chat`` the tokenizer's chat template is wrapped around them (one user turn, thinking off), unless the
    benchmark wants none: then the text begins with the token that the tokenizer puts before any."""
    head, tail = around_user_turn(tokenizer) if chat and example.chat else (_opening(tokenizer), "")

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    # the answer prefix comes after the generation prompt, so the template closes before it
    questions = [q.text.removesuffix(q.answer_prefix) + tail + q.answer_prefix for q in example.questions]
    parts = [head + example.instruction, example.context, *questions]
    tokens = [ids(part) for part in parts]
    return Prompt(
        instruction=tokens[0],
        context=tokens[1],
        questions=tokens[2:],
        text_sha256=hashlib.sha256("\u0000".join(parts).encode()).hexdigest(),
        token_sha256=sha256_tokens([i for part in tokens for i in part]),
    )


def length(example: Example, tokenizer, chat: bool = False) -> int:
    """Tokens of the context, and of the question that needs most with what is generated for it."""
    prompt = render(example, tokenizer, chat)
    return len(prompt.prefix) + longest_turn(example, prompt.questions)


def longest_turn(example: Example, questions: list[list[int]]) -> int:
    """The most tokens that a question, of these ids, adds to the context, generated ones included."""
    return max(len(ids) + q.max_new_tokens for ids, q in zip(questions, example.questions, strict=True))


def _opening(tokenizer) -> str:
    """The beginning-of-sequence token of a tokenizer that puts one before every text."""
    before = tokenizer.encode("", add_special_tokens=True)
    return tokenizer.bos_token if before and before == [tokenizer.bos_token_id] else ""
