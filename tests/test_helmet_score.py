"""HELMET's metrics on golden answers, the faults of the published code among them."""

from __future__ import annotations

import math
import sys

import pytest
from helmet_tools import make

from kvrepro.benchmarks import helmet
from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.helmet import metrics
from kvrepro.benchmarks.scbench import metrics as scbench_metrics
from kvrepro.errors import InputError


def example(task: str, references: tuple[str, ...], prepended: str = "Answer:", **info):
    question = Question("?", references, 10)
    return Example("helmet", task, 0, 0, "", "c", (question,), {"prepended": prepended} | info), question


def score(task: str, text: str, references: tuple[str, ...], prepended: str = "Answer:", **info) -> dict[str, float]:
    return helmet.score(*example(task, references, prepended, **info), text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Paris", 1),
        (" the city of PARIS!", 1),
        (" London\n\nQuestion: Which city?\nAnswer: Paris", 1),  # a later line counts, since no run stops at its end
        (" Pa ris", 0),
        ("", 0),
    ],
)
def test_passages_are_scored_by_the_answer_within(text, expected):
    assert score("kilt_nq", text, ("Rome", "Paris"))["score"] == expected


def test_what_the_configuration_means_is_scored_beside_it():
    found = score("kilt_hotpotqa", " London\n\nAnswer: Paris", ("Paris",))
    assert found == {"score": 1, helmet.STOPPED: 0}
    assert set(score("narrativeqa", " Paris", ("Paris",))) == {"score"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [(" 7", 1), (" 7\n\nlabel: 12", 1), (" 17", 0), ("7.", 1), (" label: 7", 1), (" 12\n7", 0), ("", 0)],
)
def test_a_label_is_the_first_line(text, expected):
    assert score("nlu", text, ("7",), "label:")["score"] == expected


@pytest.mark.parametrize(
    ("text", "references", "expected"),
    [
        (" B", ("B", "B. Ann"), 1),
        (" b.", ("B", "B. Ann"), 1),
        (" It is B. Ann, I think", ("B", "B. Ann"), 1),
        (" Ann", ("B", "B. Ann"), 0),
        (" C\nbecause", ("C", "C. Bob"), 1),
        ("", ("A", "A. Bob"), 1),  # fault: "A" is an article
        ("", ("B", "B. Bob"), 0),
    ],
)
def test_choices(text, references, expected):
    assert score("infbench_choice_eng", text, references)["score"] == expected
    assert score("infbench_choice_eng", text, references, "")["score"] == expected


def test_rouge_takes_the_better_of_answer_and_line():
    references = ("the cat sat on the mat",)
    assert score("infbench_qa_eng", " the cat sat on the mat\nmore words here", references)["score"] == 1
    half = score("narrativeqa", " the cat sat", references, "")["score"]
    assert half == pytest.approx(2 * 1 * 0.5 / 1.5)
    assert metrics.rouge_l_f1("cats", ["cat"]) == 1  # stemmed


@pytest.mark.parametrize(
    "judged", [lambda: metrics.rouge_l_f1("cats", ["cat"]), lambda: scbench_metrics.rouge("cats", "cat")]
)
def test_without_the_package_of_rouge_there_is_one_sentence(judged, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(InputError, match=r"summaries and long answers .* pip install rouge-score"):
        judged()


def test_a_summary_may_repeat_its_prefix():
    references = ("one two three",)
    assert score("multi_lexsum", "Summary: one two three", references, "")["score"] == 1
    assert score("infbench_sum_eng", "Summary: one two three", references, "")["score"] == pytest.approx(6 / 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 > 1 > 2", ["3", "1", "2"]),
        ("Ranking: [ID: 3] > [ID: 1]", ["3", "1"]),
        ("ID3 > ID1 > ID3", ["3", "1"]),
        ("the 12 best: 3 > 1", ["3", "1"]),
        ("1234567 3 > 1", ["1234567"]),  # fault: the longest by characters
        ("3, 1, 2", ["3"]),
        ("none", []),
    ],
)
def test_rankings_are_read(text, expected):
    assert metrics.ranking(text) == expected


def test_ndcg_is_that_of_trec_eval():
    relevance = {"a": 3, "b": 2, "c": 0, "d": 1}
    best = 3 + 2 / math.log2(3) + 1 / 2
    assert metrics.ndcg_at_10(["a", "b", "d", "c"], relevance) == 1
    assert metrics.ndcg_at_10(["c", "x", "a"], relevance) == round(1.5 / best, 5)
    assert metrics.ndcg_at_10(["x"] * 10 + ["a"], relevance) == 0
    ranked = " 1 > 2\n\n9 > 9 > 9 > 9"
    found = score("msmarco_rerank_psg", ranked, ("1 > 2",), "Ranking:", relevance={"1": 3, "2": 1})
    assert found == {"score": 0, helmet.STOPPED: 1}


def test_other_examples_are_refused():
    made = make("msmarco_rerank_psg", n=1)[0]
    bare = Example("helmet", made.task, 0, 0, "", "c", made.questions, {"prepended": ""})
    for broken in (bare, Example("helmet", made.task, 0, 0, "", "c", made.questions, {})):
        with pytest.raises(InputError, match="make the prompts anew"):
            helmet.score(broken, made.questions[0], "1")
