"""The table of the official against the revised scorer, from rows with known scores; SCBench in the registry."""

from __future__ import annotations

import pandas as pd
import pytest
from ruler_tools import tokenizer
from scbench_tools import CHOICE, ROWS, real, write
from synthetic_rows import accuracy_rows, scbench_rows

from kvrepro.analysis.accuracy import accuracy
from kvrepro.benchmarks.scbench.benchmark import BENCHMARK
from kvrepro.benchmarks.scbench.score import SCORERS
from kvrepro.errors import InputError
from kvrepro.evaluate.protocol import evaluate
from kvrepro.tables.scbench import scorer_tasks, sensitivity

CONTEXTS = 12


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """One question a context of kv (all right) and choice_eng (asked for B): "B" by method a, "Based on" by b."""
    folder = tmp_path_factory.mktemp("scbench")
    write(folder, "kv", *[ROWS["kv"] | {"multi_turns": ROWS["kv"]["multi_turns"][:1]}] * CONTEXTS)
    write(folder, "choice_eng", *[ROWS["choice_eng"] | {"multi_turns": [CHOICE]}] * CONTEXTS)
    settings = {"tasks": ["kv", "choice_eng"], "items": CONTEXTS, "length": 2000, "data": folder}
    examples = [e for task in BENCHMARK.generate(settings, tokenizer(), 42, False, False) for e in task]
    given = {("dense", 1.0): "B", ("full", 1.0): "B", ("a", 0.5): "B", ("b", 0.5): "Based on"}
    answers = []
    for example in examples:
        for (method, budget), answer in given.items():
            text = "v1" if example.task == "kv" else answer
            row = {"experiment": "scbench", "benchmark": "scbench", "model": "lab-hybrid", "n_tokens": 100, "ok": True}
            row |= {"method": method, "budget": budget, "task": example.task, "item": example.item, "question": 0}
            judged = BENCHMARK.score(example, example.questions[0], text)
            answers += [row | {"subtask": "", "metric": metric, "value": value} for metric, value in judged.items()]
    return pd.DataFrame(answers)


def test_the_difference_of_the_scorers(rows):
    frame, text = sensitivity(rows, lab=True)
    assert len(rows) == 2 * CONTEXTS * 4 * 3
    assert list(frame["method"]) == ["dense", "a", "b"] and (frame["items"] == CONTEXTS).all()
    wrong = frame.set_index("method").loc["b"]
    assert [wrong[name] for name in SCORERS] == [100, 50, 50]
    assert (wrong["difference"], wrong["low"], wrong["high"]) == (50, 50, 50)
    assert (frame.set_index("method").loc[["dense", "a"], "difference"] == 0).all()
    assert "lab model" in text and text.startswith("## SCBench by the official and the revised scorer")


def test_the_revised_scores_are_those_of_every_other_table(rows):
    result = accuracy(rows)
    frame = sensitivity(rows)[0].set_index(["method", "budget"])["revised"]
    assert all(result[key].value == value for key, value in frame.items())


def test_by_task(rows):
    frame, text = scorer_tasks(rows)
    by_task = frame.set_index("task")
    assert by_task.loc["kv", "difference"] == 0
    assert by_task.loc["choice_eng", "difference"] == pytest.approx(25)  # one of four arms
    assert (by_task["items"] == CONTEXTS).all() and "| choice_eng | 100.0 | 75.0 | 75.0 | +25.0 [" in text


def test_the_order_of_the_methods_under_both_scorers():
    rows = scbench_rows({"a": 0.75, "b": 0.5}, official=0.0)
    assert "same order at 2 of 2 kept fractions" in sensitivity(rows)[1]
    flipped = (rows["metric"] == "official") & (rows["method"] == "a") & (rows["budget"] == 0.1)
    rows.loc[flipped & (rows["task"] == "choice_eng"), "value"] = 0
    rows.loc[(rows["metric"] == "official") & (rows["method"] == "b") & (rows["task"] == "choice_eng"), "value"] = 1
    assert "same order at 1 of 2 kept fractions" in sensitivity(rows)[1]
    level = scbench_rows({"a": 0.5, "b": 0.5})
    assert "same order at 2 of 2" in sensitivity(level)[1]  # a tie is no other order


def test_failed_rows_are_left_out_and_said(rows):
    marked = rows.assign(ok=~((rows["method"] == "b") & (rows["item"] == 0)))
    frame, text = sensitivity(marked)
    assert frame.set_index("method").loc["b", "difference"] == 50 and (frame["items"] == CONTEXTS - 1).all()
    assert "2 of 96 rows failed a check" in text
    with pytest.raises(InputError, match="failed a check"):
        sensitivity(rows.assign(ok=False))


def test_rows_of_another_kind(rows):
    with pytest.raises(InputError, match="no score of the official scorer"):
        sensitivity(accuracy_rows({"a": 0.5}))
    with pytest.raises(InputError, match="several models"):
        sensitivity(pd.concat([rows, rows.assign(model="other")]))


def test_rows_of_an_evaluation_carry_sub_tasks_and_every_scorer(tiny_hybrid, tmp_path):
    example = real(tmp_path, "summary_with_needles")[0]
    assert [question.subtask for question in example.questions] == ["summary", "passkey"]
    base = {"paper": "gatesight", "experiment": "scbench", "tier": "test"}
    rows = pd.DataFrame(evaluate(tiny_hybrid, [example], [], BENCHMARK.score, base))
    assert rows["ok"].all() and set(rows["metric"]) == {"score", "official", "corrected"}
    assert set(rows["benchmark"]) == {"scbench"} and set(rows["subtask"]) == {"summary", "passkey"}
    assert len(sensitivity(rows)[0]) == 1


def test_the_registry_entry():
    settings = {"tasks": ["vt", "mf"], "items": 1, "length": 1500, "mode": "multi_request", "turns": 2}
    settings |= {"sources": {"prose": "lexicon", "word_count": 400}}
    BENCHMARK.check(settings)
    made = list(BENCHMARK.generate(settings, tokenizer(), 7, False, True))
    assert [[e.task for e in task] for task in made] == [["vt"], ["mf"]]
    assert [[len(e.questions) for e in task] for task in made] == [[1], [2]]
    assert all(e.info["split"] == "eval" and e.info["mode"] == "multi_request" for task in made for e in task)
    assert min(e.info["length"] for task in made for e in task) >= BENCHMARK.shortest(settings) == 375
    assert {"stdlib", "lexicon"} <= set(BENCHMARK.reads(settings))
    wrong = {
        "did you mean 'qa_eng'": {"tasks": ["qa_en"]},
        "benchmarks.scbench.mode": {"mode": "turns"},
        "benchmarks.scbench.sources.prose": {"sources": {"prose": "lexikon"}},
        "give data or sources": {"sources": {}},
    }
    for message, change in wrong.items():
        with pytest.raises(InputError, match=message):
            BENCHMARK.check(settings | change)
