"""Scores of stored predictions by every scorer, and their means: sub-tasks of a mixed task weigh the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.scbench.score import SCORERS, score, turn
from kvrepro.errors import InputError


def rescore(rows: pd.DataFrame, examples: Iterable[Example]) -> pd.DataFrame:
    """Answer rows once per scorer: "metric" names the scorer, "value" is its score, "subtask" is added. Rows of other
    metrics than "score", which hold the same answers again, are left out.

    ``examples`` are those that were asked. Raises InputError for a row whose example is not among them.
    """
    known = {(example.task, example.item, example.seed): example for example in examples}
    found = []
    rows = rows[rows["metric"] == "score"] if "metric" in rows else rows
    for row in rows.to_dict("records"):
        try:
            example = known[row["task"], row["item"], row["seed"]]
            question = example.questions[row["question"]]
        except (KeyError, IndexError) as error:
            raise InputError(
                f"{row['task']} item {row['item']}, question {row['question']}: not among the examples; give the "
                "prompts that these rows were made from."
            ) from error
        row["subtask"] = turn(example, question)["subtask"]
        found += [
            row | {"metric": name, "value": score(example, question, row["prediction"], name)} for name in SCORERS
        ]
    return pd.DataFrame(found)


def task_means(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Columns ``by``, task and value: the mean over questions of each sub-task, then over the sub-tasks of a task.

    GateSight Appendix A: a mixed task enters the mean over tasks with the average of its two sub-task scores.
    """
    keys = [*by, "task"]
    parts = rows.groupby([*keys, "subtask"], observed=True)["value"].mean()
    return parts.groupby(keys, observed=True).mean().reset_index()
