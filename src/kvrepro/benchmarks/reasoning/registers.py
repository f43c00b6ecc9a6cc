"""``registers``: programs, the trace that runs them, and items of a given length."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from kvrepro.benchmarks.example import Example, Question, render
from kvrepro.benchmarks.example import length as tokens_of
from kvrepro.benchmarks.fit import largest_fitting
from kvrepro.benchmarks.reasoning.definitions import REGISTERS
from kvrepro.benchmarks.ruler import draws
from kvrepro.errors import InputError

TASK = "registers"
LEAST_REGISTERS = 3
_TRIES = 200

Step = tuple[str, str, str]  # of a line of the program: the two that are added, and the one that is set


@dataclass(frozen=True)
class Program:
    """Registers with their digits at first, in their order, and the steps of a round."""

    registers: dict[str, int]
    steps: tuple[Step, ...]

    @property
    def context(self) -> str:
        """Registers and program as the prompt has them."""
        lines = "\n".join(REGISTERS["line"].format(a=a, b=b, c=c) for a, b, c in self.steps)
        return REGISTERS["context"].format(registers=listed(self.registers), program=lines)

    def run(self, rounds: int) -> tuple[str, dict[str, int]]:
        """The trace of so many rounds, with the registers at its end, and these."""
        digits, trace = dict(self.registers), ""
        for number in range(1, rounds + 1):
            trace += REGISTERS["round"].format(number=number)
            for a, b, c in self.steps:
                x, y = digits[a], digits[b]
                digits[c] = (x + y) % 10
                trace += REGISTERS["step"].format(a=a, x=x, b=b, y=y, c=c, z=digits[c])
        return trace + REGISTERS["end"].format(registers=listed(digits)), digits

    def repeats(self, rounds: int) -> bool:
        """Whether the registers stand as they stood before after one of so many rounds."""
        digits, seen = dict(self.registers), set()
        for _ in range(rounds + 1):
            state = tuple(digits.values())
            if state in seen:
                return True
            seen.add(state)
            for a, b, c in self.steps:
                digits[c] = (digits[a] + digits[b]) % 10
        return False


def listed(digits: dict[str, int]) -> str:
    """Registers with their digits."""
    shown = (REGISTERS["register"].format(name=name, digit=digit) for name, digit in digits.items())
    return REGISTERS["register_separator"].join(shown)


def program(rng: random.Random, registers: int, split: str | None, rounds: int) -> Program:
    """A program in which every register is set once a round from two others, and whose registers never stand twice in
    the same way within ``rounds`` rounds, so that nothing but the trace leads to the end."""
    taken: set[str] = set()
    names = [draws.variable_name(rng, split, REGISTERS["name_letters"], taken) for _ in range(registers)]
    for _ in range(_TRIES):
        steps = tuple((*rng.sample([n for n in names if n != c], 2), c) for c in rng.sample(names, registers))
        drawn = Program({name: rng.randrange(10) for name in names}, steps)
        if not drawn.repeats(rounds):
            return drawn
    raise InputError(f"registers: no program of {registers} registers runs {rounds} rounds; give more registers.")


def rounds_within(room: int, registers: int, tokenizer: Any, split: str | None, chat: bool) -> int:
    """The most rounds whose prompt, a chat template included, and answer have ``room`` tokens, by those of a program
    with long names; 0 where not even one fits."""
    rng = random.Random(0)
    names = [draws.variable_name(rng, split, REGISTERS["name_letters"]) for _ in range(200)]

    def of_step(name: str) -> int:
        return _count(REGISTERS["step"].format(a=name, x=1, b=name, y=1, c=name, z=2), tokenizer)

    longest = sorted(names, key=of_step, reverse=True)[:registers]
    probe = Program(
        dict.fromkeys(longest, 1),
        tuple((longest[i - 1], longest[i - 2], longest[i]) for i in range(registers)),
    )

    def needed(rounds: int) -> int:
        return tokens_of(_example(probe, rounds, 0, 0, tokenizer), tokenizer, chat)

    fitted = largest_fitting(needed, room, 1, None)
    return fitted[0] if fitted else 0


def question(rounds: int) -> str:
    """What is asked, with the answer prefix."""
    return REGISTERS["question"].format(rounds=rounds) + REGISTERS["answer_prefix"]


def generate(
    items: int, length: int, registers: int, tokenizer: Any, seed: int, split: str | None, chat: bool = False
) -> list[Example]:
    """``items`` programs with as many rounds as prompt and answer have room for in ``length`` tokens. Raises InputError
    when that is none."""

    rounds = rounds_within(length, registers, tokenizer, split, chat)
    if rounds < 1:
        raise InputError(f"registers: {length} tokens have no room for a round of {registers} registers; raise length.")
    examples = []
    for item in range(items):
        drawn = program(random.Random(f"{seed}:{TASK}:{item}"), registers, split, rounds)
        example = _example(drawn, rounds, item, seed, tokenizer)
        info = {
            "rounds": rounds,
            "trace_tokens": example.questions[0].max_new_tokens - REGISTERS["slack"],
            "prompt_tokens": len(render(example, tokenizer, chat).prefix),
        }
        examples.append(replace(example, info=info))
    return examples


def _example(drawn: Program, rounds: int, item: int, seed: int, tokenizer: Any) -> Example:
    """The example that asks for so many rounds of a program."""
    trace, end = drawn.run(rounds)
    most = _count(trace, tokenizer) + REGISTERS["slack"]
    asked = Question(question(rounds), (listed(end), trace), most, REGISTERS["answer_prefix"])
    return Example("reasoning", TASK, item, seed, REGISTERS["instruction"], drawn.context, (asked,))


def _count(text: str, tokenizer: Any) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))
