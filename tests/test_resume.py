"""An evaluation that is killed goes on where it was, and never mixes rows of different evaluations."""

from __future__ import annotations

import pandas as pd
import pytest

from kvrepro.benchmarks.example import Example, Question
from kvrepro.evaluate.resume import TOGETHER, finished, resumed
from kvrepro.script import Run

EXAMPLES = [Example("ruler", "vt", i, i, "", "x", (Question("?", ("1",), 2),)) for i in range(2 * TOGETHER + 3)]


class Evaluation:
    """Notes what it was asked for, and is killed at an item."""

    def __init__(self, killed_at=None):
        self.asked, self.killed_at = [], killed_at

    def __call__(self, examples):
        for example in examples:
            if example.item == self.killed_at:
                raise KeyboardInterrupt
            self.asked.append(example.item)
            for question in (0, 1):
                yield {"task": example.task, "item": example.item, "question": question, "value": 0.5 * example.item}


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path):
    whole = resumed(tmp_path / "a", EXAMPLES, Evaluation(), "vt")
    folder, killed = tmp_path / "b", Evaluation(killed_at=TOGETHER + 2)
    with pytest.raises(KeyboardInterrupt):
        resumed(folder, EXAMPLES, killed, "vt")
    rest = Evaluation()
    pd.testing.assert_frame_equal(resumed(folder, EXAMPLES, rest, "vt"), whole)
    assert rest.asked == [e.item for e in EXAMPLES[TOGETHER:]]
    assert list(whole["item"].unique()) == [e.item for e in EXAMPLES] and len(whole) == 2 * len(EXAMPLES)
    again = Evaluation()
    resumed(folder, EXAMPLES, again, "vt")
    assert again.asked == []
    finished(folder)
    assert not folder.exists()


@pytest.mark.parametrize("fault", ["truncated", "other items"])
def test_a_part_that_does_not_fit_is_made_again(tmp_path, fault):
    whole = resumed(tmp_path, EXAMPLES, Evaluation(), "vt")
    part = tmp_path / "0.parquet"
    if fault == "truncated":
        part.write_bytes(part.read_bytes()[:200])
    else:
        part.write_bytes((tmp_path / f"{TOGETHER}.parquet").read_bytes())
    once = Evaluation()
    pd.testing.assert_frame_equal(resumed(tmp_path, EXAMPLES, once, "vt"), whole)
    assert once.asked == [e.item for e in EXAMPLES[:TOGETHER]]


def test_the_folder_is_of_one_evaluation(tmp_path):
    given = tmp_path / "prompts"
    given.write_text("a")
    config = {"tier": "quick", "device": "cpu"}
    first = Run("benchmark_accuracy", {"kept": [0.1]}, config).unfinished([given])
    assert first == Run("benchmark_accuracy", {"kept": [0.1]}, config).unfinished([given])
    others = [
        Run("benchmark_accuracy", {"kept": [0.2]}, config).unfinished([given]),
        Run("budget_rows", {"kept": [0.1]}, config).unfinished([given]),
        Run("benchmark_accuracy", {"kept": [0.1]}, config | {"device": "cuda"}).unfinished([given]),
    ]
    given.write_text("b")
    others.append(Run("benchmark_accuracy", {"kept": [0.1]}, config).unfinished([given]))
    assert len({first, *others}) == 5
