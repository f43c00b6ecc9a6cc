"""Reasoning tasks: the generated programs against a run of their own text, the scorers on golden answers, bad files."""

from __future__ import annotations

import json
import random
import re

import pandas as pd
import pytest
from ruler_tools import tokenizer

from kvrepro.benchmarks.example import Example, Question, render
from kvrepro.benchmarks.reasoning import registers, score
from kvrepro.benchmarks.reasoning.aime import load, problems
from kvrepro.benchmarks.reasoning.benchmark import BENCHMARK
from kvrepro.benchmarks.ruler.draws import EVAL, TRAIN, split_of
from kvrepro.errors import InputError

PROGRAM = registers.Program({"AAA": 7, "BBB": 5, "CCC": 0}, (("AAA", "BBB", "CCC"), ("CCC", "BBB", "AAA")))
TRACE = """
round 1:
AAA 7 + BBB 5 = CCC 2
CCC 2 + BBB 5 = AAA 7
round 2:
AAA 7 + BBB 5 = CCC 2
CCC 2 + BBB 5 = AAA 7
Registers: AAA 7, BBB 5, CCC 2"""


def items(tokenizer, count=4, length=900, n=4, split=EVAL, chat=False):
    return registers.generate(count, length, n, tokenizer, 42, split, chat)


def test_a_program_and_its_trace_by_hand():
    assert PROGRAM.context == "\nRegisters: AAA 7, BBB 5, CCC 0\nProgram:\nAAA + BBB = CCC\nCCC + BBB = AAA"
    assert PROGRAM.run(2) == (TRACE, {"AAA": 7, "BBB": 5, "CCC": 2})
    assert PROGRAM.repeats(2) and not PROGRAM.repeats(1)


def test_every_item_can_be_solved_from_its_text(tiny_dense):
    """An interpreter that reads nothing but the prompt writes the trace that is wanted."""
    for example in items(tiny_dense.tokenizer):
        question = example.questions[0]
        text = example.instruction + example.context + question.text
        digits = {name: int(digit) for name, digit in re.findall(r"(\w{3}) (\d)", example.context)}
        program = re.findall(r"(\w{3}) \+ (\w{3}) = (\w{3})", text)
        assert sorted(c for _, _, c in program) == sorted(digits) and all(len(set(line)) == 3 for line in program)
        rounds, written = int(re.search(r"Run (\d+) rounds", text).group(1)), []
        states = {tuple(digits.values())}
        for number in range(rounds):
            written.append(f"round {number + 1}:")
            for a, b, c in program:
                x, y = digits[a], digits[b]
                digits[c] = int(str(x + y)[-1])
                written.append(f"{a} {x} + {b} {y} = {c} {digits[c]}")
            states.add(tuple(digits.values()))
        written.append("Registers: " + ", ".join(f"{name} {digit}" for name, digit in digits.items()))
        assert BENCHMARK.score(example, question, "\n".join(["", *written])) == {"score": 1.0, "steps": 1.0}
        assert len(states) == rounds + 1, "no state comes back"


def test_prompt_and_answer_fill_the_length_and_the_trace_is_the_longer_part(tiny_dense):
    tokenizer = tiny_dense.tokenizer
    for length in (700, 1400):
        for example in items(tokenizer, length=length):
            prompt, trace = render(example, tokenizer), example.questions[0].references[1]
            tokens = len(tokenizer.encode(trace, add_special_tokens=False))
            assert tokens < example.questions[0].max_new_tokens == tokens + 16
            used = len(prompt.prefix) + len(prompt.questions[0]) + tokens + 16
            assert 0.7 * length < used <= length and example.info["trace_tokens"] == tokens
        assert length == 700 or tokens > len(prompt.prefix)


def test_a_chat_template_is_counted_in_the_length():
    for length in range(900, 1000, 3):  # a round has about 80 tokens
        (example,) = items(tokenizer(), 1, length, chat=True)
        prompt = render(example, tokenizer(), chat=True)
        used = len(prompt.prefix) + len(prompt.questions[0]) + example.questions[0].max_new_tokens
        assert 0.8 * length < used <= length


def test_items_repeat_differ_and_use_names_of_their_split(tiny_dense):
    first, again = items(tiny_dense.tokenizer), items(tiny_dense.tokenizer)
    assert first == again and len({example.context for example in first}) == 4
    for split in (EVAL, TRAIN):
        names = re.findall(r"\b([A-Z]{3})\b", items(tiny_dense.tokenizer, split=split)[0].context)
        assert {split_of(name) for name in names} == {split}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (TRACE, (1, 1)),
        (TRACE.replace("\n", "\n\n ") + " \n", (1, 1)),
        (TRACE.split("Registers")[0], (0, 6 / 7)),
        (TRACE.replace("BBB 5, CCC 2", "BBB 5, CCC 3"), (0, 6 / 7)),
        (TRACE.replace("AAA 7\nround 2", "AAA 8\nround 2"), (1, 2 / 7)),  # the end is right by chance
        (TRACE + "\nRegisters: AAA 1, BBB 5, CCC 2", (0, 1)),
        ("Registers: AAA 7, BBB 5, CCC 2", (1, 0)),
        ("", (0, 0)),
        (" AAA 7, AAA 7, AAA 7", (0, 0)),
    ],
)
def test_the_scorer_of_registers_on_golden_answers(given, expected):
    found = score.registers(given, "AAA 7, BBB 5, CCC 2", TRACE)
    assert (found["score"], found["steps"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("so the answer is \\boxed{70}.", 1),
        ("\\boxed{070}", 1),
        ("\\boxed{ 70 }", 1),
        ("\\boxed{$70$}", 1),
        ("\\boxed{70\\text{ degrees}}", 1),
        ("\\boxed{3} and finally \\boxed{70}", 1),
        ("<think>\\boxed{70}</think> It is \\boxed{71}.", 0),
        ("<think>\\boxed{71}</think>\n\\boxed{70}", 1),
        ("\\boxed{\\frac{70}{1}}", 0),
        ("\\boxed{70", 0),
        ("70", 0),
        ("\\boxed{-70}", 0),
        ("\\boxed{}", 0),
        ("\\boxed{7,0}", 1),
        ("\\boxed{7²}", 0),
        ("", 0),
    ],
)
def test_the_scorer_of_aime_on_golden_answers(given, expected):
    question = Question("?", ("70",), 8)
    example = Example("reasoning", "aime25", 0, 0, "", "", (question,))
    assert BENCHMARK.score(example, question, given) == expected


PROBLEMS = [{"problem": "How many digits are there?", "answer": "10", "id": "0"}, {"problem": "2 + 2?", "answer": 4}]


def written(path, rows):
    if path.suffix == ".parquet":
        pd.DataFrame(rows).astype(str).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["aime25.jsonl", "aime25.parquet"])
def test_problems_of_the_users_file_become_examples(tmp_path, name, tiny_dense):
    path = written(tmp_path / name, PROBLEMS)
    settings = {"tasks": ["aime25"], "aime25": str(path), "items": 30, "length": 300}
    (examples,) = BENCHMARK.generate(settings, tiny_dense.tokenizer, 1, False, False)
    assert [example.questions[0].references for example in examples] == [("10",), ("4",)]
    first, prompt = examples[0], render(examples[0], tiny_dense.tokenizer)
    assert first.context + first.questions[0].text == (
        "Question: How many digits are there?\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert len(prompt.prefix) + len(prompt.questions[0]) + first.questions[0].max_new_tokens == 300
    assert BENCHMARK.reads(settings) == {"aime25": path}
    drawn = [example.questions[0].sampling for example in examples]
    assert {(each.temperature, each.top_p, each.top_k) for each in drawn} == {(0.6, 0.95, 20)}
    (other,) = BENCHMARK.generate(settings, tiny_dense.tokenizer, 2, False, False)
    assert len({each.seed for each in drawn} | {example.questions[0].sampling.seed for example in other}) == 4
    assert examples == next(BENCHMARK.generate(settings, tiny_dense.tokenizer, 1, False, False))
    with pytest.raises(InputError, match=r"aime25 item 0: its prompt has .* raise length"):
        load(path, 1, 40, tiny_dense.tokenizer, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"problem": "1 + 1?"}\n', "line 1: field 'answer' is missing"),
        (b'{"problem": "1 + 1?", "answer": "2"}\n{"answer": "2"}', "line 2: field 'problem' is missing"),
        (b'{"problem": "1 + 1?", "answer": "two"}', "line 1: field 'answer' is 'two', which is no whole number"),
        ('{"problem": "1 + 1?", "answer": "2²"}'.encode(), "line 1: field 'answer' is '2²', which is no whole number"),
        (b"[1]\n", "line 1 is not a JSON object but a list"),
        (b'{"problem": "1 + 1?', "line 1: is not JSON"),
        (b'{"problem": "1 + 1?", "answer": true}', "line 1: field 'answer' must be a whole number, got true or false"),
        (b'{"problem": "\xff", "answer": "2"}', r"is not UTF-8 \(byte 13\)"),
        (b"", "holds no problem"),
    ],
    ids=str,
)
def test_a_faulty_file_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "aime25.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        problems(path)


def test_a_length_without_room_and_a_program_without_end_are_one_sentence(tiny_dense):
    with pytest.raises(InputError, match="256 tokens have no room for a round of 8 registers; raise length"):
        items(tiny_dense.tokenizer, length=256, n=8)
    with pytest.raises(InputError, match="no program of 3 registers runs 2000 rounds; give more registers"):
        registers.program(random.Random(0), 3, None, 2000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["register"]}, "did you mean 'registers'"),
        ({"tasks": ["registers"]}, "benchmarks.reasoning.registers: the key is missing; give the number"),
        ({"tasks": ["aime25"], "registers": 4}, "benchmarks.reasoning.aime25: the key is missing; give the path"),
    ],
    ids=str,
)
def test_bad_settings_are_one_sentence(settings, message):
    with pytest.raises(InputError, match=message):
        BENCHMARK.check(settings)
