"""SCBench's scorers, worked out by hand, faults of the published code included."""

from __future__ import annotations

import math

import pytest
from scbench_tools import CODE, ROWS, make, real

from kvrepro.benchmarks import scbench
from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.scbench import functions, metrics
from kvrepro.errors import InputError


def judged(task, subtask, label, text, mode="multi_turn", name="", needles=(), lang="python"):
    """Scores by the official, the revised and the corrected scorer."""
    question = Question("q", ("r",), 5, subtask=subtask)
    info = {"mode": mode, "turns": [{"label": label, "name": name}], "needles": needles, "lang": lang}
    example = Example("scbench", task, 0, 0, "", "c", (question,), info)
    return [pytest.approx(scbench.score(example, question, text, name)) for name in scbench.SCORERS]


CASES = [  # task, sub-task, label, prediction, official, revised, corrected
    ("kv", "kv", "ab-12", "It is ab-12.", 1, 1, 1),
    ("kv", "kv", "ab-12", "AB-12", 0, 0, 0),  # case counts
    ("prefix_suffix", "prefix_suffix", "xyz", "xy", 0, 0, 0),
    ("vt", "vt", ["AB", "CD", "EF"], "ab CD", 0.67, 0.67, 0.67),  # rounded to two digits as published
    ("qa_eng", "qa_eng", ["Ann Lee"], "It was ANN LEE", 1, 1, 1),
    ("qa_eng", "qa_eng", ["Ann Lee"], "Ann", 0, 0, 0),
    ("qa_chn", "qa_chn", "王安石", "王安石。", 0.5, 1, 1),  # one character of three: 2 / (3 + 1)
    ("qa_chn", "qa_chn", "王安石", "王 安", 2 / 3, 0.8, 0.8),
    ("qa_chn", "qa_chn", ["王安石", "王安"], "王安", 1, 1, 1),  # a list is read whole by both
    ("qa_chn", "qa_chn", "ABC", "abc", 0.5, 1, 1),
    ("qa_chn", "qa_chn", "王安石", "不知", 0, 0, 0),
    ("choice_eng", "choice_eng", ["Beta", "B"], "Based on the book, C", 1, 0, 0),
    ("choice_eng", "choice_eng", ["Beta", "B"], "B", 1, 1, 1),
    ("choice_eng", "choice_eng", ["Beta", "B"], " B. Beta", 1, 1, 1),
    ("choice_eng", "choice_eng", ["Beta", "B"], "(B)", 0, 1, 1),
    ("choice_eng", "choice_eng", ["Beta", "B"], "Option B", 1, 1, 1),
    ("choice_eng", "choice_eng", ["Beta", "B"], "Option B is right", 1, 1, 1),
    ("choice_eng", "choice_eng", ["Beta", "B"], "Answer: B", 0, 1, 1),  # official reads the A of "Answer"
    ("choice_eng", "choice_eng", ["Beta", "B"], "The correct answer is B.", 1, 1, 1),
    ("choice_eng", "choice_eng", ["Beta", "B"], "Beta", 1, 0, 0),
    ("choice_eng", "choice_eng", ["Alpha", "A"], "A man came", 1, 0, 0),
    ("choice_eng", "choice_eng", ["Alpha", "A"], "It is AB, or A", 0, 0, 0),  # "AB" is the first part of "ABCD"
    ("choice_eng", "choice_eng", ["Alpha", "A"], "I say: A", 1, 0, 0),
    ("choice_eng", "choice_eng", ["Alpha", "A"], "the answer is: nothing A", 0, 0, 0),
    ("choice_eng", "choice_eng", ["Beta", "B"], "C", 0, 0, 0),
    ("many_shot", "many_shot", "(A)", "(B)", 1, 1, 0),  # the bracket is in both
    ("many_shot", "many_shot", "(A)", "x (a)", 1, 1, 1),
    ("many_shot", "many_shot", ["(A)"], "(B)", 0, 0, 0),
    ("mf", "mf", 12, "about 12.9", 1, 1, 1),
    ("mf", "mf", 12.5, "12.5, 3", 1, 1, 1),
    ("mf", "mf", 12, "3, 12", 0, 0, 0),
    ("mf", "mf", -3, "-3", 0, 0, 0),  # the sign is not read, as published
    ("summary_with_needles", "passkey", "0123", "key 0123 4", 1, 1, 1),
    ("summary_with_needles", "passkey", "0123", "123", 0, 0, 0),
    ("summary", "summary", "the cat sat", "the cat sat", 1, 1, 1),
    ("summary", "summary", "the cat sat", "the cat ran", 2 / 3, 2 / 3, 2 / 3),
    ("summary", "summary", "one two\nthree four", "three four\none two", 1, 1, 1),  # by lines, in any order
    ("repoqa_and_kv", "kv", "v1", "v1", 1, 1, 1),
]


@pytest.mark.parametrize(("task", "subtask", "label", "text", "official", "revised", "corrected"), CASES)
def test_scores_by_hand(task, subtask, label, text, official, revised, corrected):
    assert judged(task, subtask, label, text) == [official, revised, corrected]


def test_the_mixed_task_never_matches_in_multi_request_mode_as_published():
    assert judged("repoqa_and_kv", "kv", "v1", "v1", mode="multi_request") == [0, 1, 1]
    assert judged("kv", "kv", "v1", "v1", mode="multi_request") == [1, 1, 1]


@pytest.mark.parametrize("task", scbench.TASKS)
def test_an_empty_answer_scores_nothing(task, tmp_path):
    for example in real(tmp_path, task):
        for question in example.questions:
            for text in ("", " \n"):
                assert [scbench.score(example, question, text, scorer) for scorer in scbench.SCORERS] == [0, 0, 0]


OTHER = ["mul", "def mul(a, b):\n    product = a * b\n    return product"]
NEEDLES = [["add", CODE], OTHER]


def test_a_function_must_be_the_best_match_and_a_good_one():
    def score(text, needles=NEEDLES):
        return judged("repoqa", "repoqa", CODE, text, name="add", needles=needles)[1]

    assert score(CODE) == 1
    assert score(f"Here it is:\n```python\nimport os\n\n{CODE}\n```\nDone.") == 1  # the function in the fence
    assert score(OTHER[1]) == 0  # another function is more like it
    assert score("def add(a, b): pass") == 0
    assert score(f"{CODE}\n{OTHER[1]}") == 0  # without a fence all of it counts
    assert score(CODE, [OTHER]) == 0


def test_bleu_against_a_value_worked_out_by_hand():
    # shared: 4 of 5 words, 2 of 4 pairs, 1 of 3 triples; smoothing 4 makes the missing fours ln(5) / (2 * 5), of 2
    by_hand = (4 / 5 * 2 / 4 * 1 / 3 * math.log(5) / 10 / 2) ** 0.25
    assert functions.similarity("a b c x d", "a b c y d") == pytest.approx(by_hand)
    assert functions.similarity("a b c d e", "a b c d e") == pytest.approx(1)
    assert functions.similarity("", "a b") == 0


FENCED = {
    "python": ("class A:\n    def f(self):\n        return 1\n", "def f(self):\n        return 1"),
    "java": ("class A { int f() { return 1; } }", "int f() { return 1; }"),
    "typescript": ("let a = 1;\nfunction f() { return 1; }", "function f() { return 1; }"),
    "rust": ("use a;\nfn f() -> i32 { 1 }", "fn f() -> i32 { 1 }"),
    "cpp": ("int x;\nint A::g() { return 2; }\nint f() { return 1; }", "int f() { return 1; }"),
    "go": ("package a\nfunc f() int { return 1 }", "func f() int { return 1 }"),
}


@pytest.mark.parametrize("lang", FENCED)
def test_the_first_function_of_a_fenced_block(lang):
    pytest.importorskip("tree_sitter_go", reason="the grammars are an optional extra")
    block, function = FENCED[lang]
    assert functions.answer_code(f"```{lang}\n{block}\n```", lang) == function
    assert functions.answer_code("```\nno code\n```", lang) == "no code\n"
    assert functions.answer_code("```\nnot closed", lang) == "```\nnot closed"


def test_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(functions.GRAMMARS, "go", ("no_such_package", "language", "function_declaration"))
    functions._parser.cache_clear()
    with pytest.raises(InputError, match=r"no_such_package.*pip install"):
        functions.require("go")


def test_bad_calls():
    with pytest.raises(InputError, match="did you mean 'revised'"):
        example = make("kv")[0]
        scbench.score(example, example.questions[0], "x", "revise")
    with pytest.raises(InputError, match="does not hold this question's label"):
        scbench.score(make("kv")[0], Question("other", ("x",), 3), "x")
    with pytest.raises(InputError, match="must be a number"):
        metrics.first_number("3", "3")  # where the published code raises TypeError


def test_every_published_row_is_scored_with_its_own_answer(tmp_path):
    for task in ROWS:
        for example in real(tmp_path, task):
            for question, turn in zip(example.questions, example.info["turns"], strict=True):
                answer = turn["label"][-1] if task == "choice_eng" else " ".join(question.references)
                assert scbench.score(example, question, answer) == 1
