"""Middle truncation to a token limit, as the official evaluation does it on token ids: here on the text of the context.

The official script cuts the ids of the first prompt (instruction, context, first question) to their first and last
halves. Here the same halves are kept, and the cut falls on the borders of the same tokens, but what is kept is a text
and is tokenised anew: beside the cut a token or two may differ, and a character whose tokens the cut would part goes.
"""

from __future__ import annotations

from typing import Any

from kvrepro.errors import InputError


def middle(context: str, tokenizer: Any, room: int, head: int) -> tuple[str, int]:
    """``context`` with its middle taken out so that it has at most ``room`` tokens, and how many tokens it had.

    ``head`` of the kept tokens stand before the cut (0 to ``room``). Raises InputError when there is no room at all, or
    when the tokenizer gives no offsets (a slow one).
    """
    if room < 1:
        raise InputError("instruction, questions and generated tokens alone exceed the limit of tokens: raise it.")
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("middle truncation needs a tokenizer that gives offsets: load its fast version.")
    spans = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    n = len(spans)
    if n <= room:
        return context, n
    head = max(0, min(head, room))
    tail = room - head
    while True:
        before = spans[head - 1][1] if head else 0
        after = spans[n - tail][0] if tail else len(context)
        if tail < n and tail and spans[n - tail - 1][1] > after:  # the cut would part a character
            after = spans[n - tail][1]
        text = context[:before] + context[max(before, after) :]
        tokens = len(tokenizer.encode(text, add_special_tokens=False))
        if tokens <= room:
            return text, n
        tail, head = max(0, tail - (tokens - room)), head if tail else head - (tokens - room)
