"""What an answer is worth: the end that it reaches, and how far its steps were right."""

from __future__ import annotations

import re

from kvrepro.benchmarks.reasoning.definitions import REGISTERS

THOUGHT = "</think>"
_BOXED = "\\boxed{"


def registers(text: str, end: str, trace: str) -> dict[str, float]:
    """ "score": 1 when the answer's last line lists the registers as they stand at the end. "steps": share of the lines
    of the right trace that stand in the answer before its first wrong line."""
    given, wanted = (lines(x) for x in (text, trace))
    last = REGISTERS["end"].format(registers=end).strip()
    right = 0
    while right < min(len(given), len(wanted)) and given[right] == wanted[right]:
        right += 1
    return {"score": float(bool(given) and given[-1] == last), "steps": right / len(wanted)}


def lines(text: str) -> list[str]:
    """Lines that hold something, without the white space around them."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def boxed(text: str) -> str | None:
    """What the last \\boxed{} of the answer holds, thoughts left out; None where there is none that is closed."""
    text = text.rsplit(THOUGHT, 1)[-1]
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth, start = 1, start + len(_BOXED)
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    return None


def aime25(text: str, answer: str) -> float:
    """1 when the last boxed number is the answer, whatever its leading zeros."""
    number = re.sub(r"[\s,$]|\\[,;!]|\\text\{.*?\}", "", boxed(text) or "")
    return float(number.isdecimal() and int(number) == int(answer))
