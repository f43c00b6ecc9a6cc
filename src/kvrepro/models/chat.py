"""What a chat template puts around one user turn."""

from __future__ import annotations

from typing import Any

MARKER = "\u0001"  #: stands for the turn's text; no template and no text holds it


def around_user_turn(tokenizer: Any) -> tuple[str, str]:
    """The text before and after the user's words, generation prompt included, thinking off."""
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": MARKER}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    head, tail = whole.split(MARKER)
    return head, tail
