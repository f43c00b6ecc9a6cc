"""The table of the official against the revised scorer, from rows with known scores; SCBench in the registry."""

from __future__ import annotations

import pandas as pd
import pytest
from ruler_tools import tokenizer
from scbench_tools import CHOICE, ROWS, write

from kvrepro.benchmarks import scbench
from kvrepro.benchmarks.scbench.benchmark import BENCHMARK
from kvrepro.errors import InputError
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
            row = {
                "model": "lab-hybrid",
                "method": method,
                "budget": budget,
                "task": example.task,
                "item": example.item,
            }
            row |= {"seed": 0, "question": 0, "prediction": text, "ok": True}
            judged = BENCHMARK.score(example, example.questions[0], text)
            answers += [row | {"metric": metric, "value": value} for metric, value in judged.items()]
    return scbench.rescore(pd.DataFrame(answers), examples)


def test_the_difference_of_the_scorers(rows):
    frame, text = sensitivity(rows, lab=True)
    assert len(rows) == 2 * CONTEXTS * 4 * 3
    assert list(frame["method"]) == ["dense", "a", "b"] and (frame["items"] == CONTEXTS).all()
    wrong = frame.set_index("method").loc["b"]
    assert (wrong["official"], wrong["revised"], wrong["corrected"]) == (100, 50, 50)
    assert (wrong["difference"], wrong["low"], wrong["high"]) == (50, 50, 50)
    assert (frame.set_index("method").loc[["dense", "a"], "difference"] == 0).all()
    assert "same order at 0 of 1 kept fractions" in text and "lab" in text


def test_by_task(rows):
    frame, text = scorer_tasks(rows)
    by_task = frame.set_index("task")
    assert by_task.loc["kv", "difference"] == 0
    assert by_task.loc["choice_eng", "difference"] == pytest.approx(25)  # one of four arms
    assert (by_task["answers"] == 4 * CONTEXTS).all() and "| choice_eng | 100.0 | 75.0 | 75.0 | +25.0 | 48 |" in text


def test_failed_rows_are_left_out_and_said(rows):
    marked = rows.assign(ok=~((rows["method"] == "b") & (rows["item"] == 0)))
    frame, text = sensitivity(marked)
    assert frame.set_index("method").loc["b", "difference"] == 50
    assert "6 of 288 rows failed a check" in text
    with pytest.raises(InputError, match="passed its checks"):
        sensitivity(rows.assign(ok=False))


def test_rows_of_another_kind(rows):
    with pytest.raises(InputError, match="pass them through rescore"):
        sensitivity(rows[rows["metric"] == "revised"])
    with pytest.raises(InputError, match="several models"):
        sensitivity(pd.concat([rows, rows.assign(model="other")]))


def test_the_registry_entry():
    settings = {"tasks": ["vt", "mf"], "items": 1, "length": 1500, "mode": "multi_request"}
    settings |= {"sources": {"prose": "lexicon", "word_count": 400}}
    BENCHMARK.check(settings)
    made = list(BENCHMARK.generate(settings, tokenizer(), 7, False, True))
    assert [[e.task for e in task] for task in made] == [["vt"], ["mf"]]
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
