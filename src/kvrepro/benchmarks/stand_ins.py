"""Items of stand-ins, each as full as a length allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from kvrepro.benchmarks.example import Example, length
from kvrepro.benchmarks.fit import largest_fitting
from kvrepro.errors import InputError

FILLED = 0.9  #: a source that ends before this share of the length is filled is too short

Asked = TypeVar("Asked")


def check_size(name: str, n_items: int, tokens: int) -> None:
    """InputError unless a benchmark is to have items, and these a length."""
    if n_items < 1 or tokens < 1:
        raise InputError(
            f"{name} needs at least one item and a positive length, got {n_items} items of {tokens} tokens."
        )


def capped(asked: Asked, most_new_tokens: int | None) -> Asked:
    """A task or a question with at most so many tokens to an answer; None keeps the published number."""
    if most_new_tokens is None:
        return asked
    return replace(asked, max_new_tokens=min(asked.max_new_tokens, most_new_tokens))


def fullest(
    made: Callable[[int], Example],
    smallest: int,
    tokens: int,
    tokenizer: Any,
    chat: bool,
    remedy: str,
    largest: int | None = None,
    shortage: str = "",
) -> Example:
    """The largest of the examples ``made(size)`` whose prompt and answer have at most ``tokens`` tokens, with "length"
    in its ``info``. InputError, which ends in ``remedy``, where not even the smallest fits; and one that begins with
    ``shortage`` where the ``largest`` that there is leaves room."""
    found = largest_fitting(lambda size: length(made(size), tokenizer, chat), tokens, smallest, largest)
    if found is None:
        least = made(smallest)
        raise InputError(
            f"{least.task}: item {least.item} needs at least {length(least, tokenizer, chat)} tokens with this "
            f"tokenizer, more than the length of {tokens}: {remedy}."
        )
    size, used = found
    whole = made(size)
    if size == largest and used < FILLED * tokens:
        raise InputError(f"{whole.task}: {shortage}, or lower the length of {tokens} tokens.")
    return replace(whole, info=whole.info | {"length": used})
