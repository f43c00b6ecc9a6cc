"""Scores of SCBench answers: as published, as GateSight revises them, and with the other known faults put right.

==============  =====================================================================================================
``official``    the published code, faults included
``revised``     GateSight Appendix A, and the default: qa_chn and choice_eng revised, all else as published
``corrected``   ``revised``, and many_shot labels read as whole texts
==============  =====================================================================================================

Known faults of the published code, and what is done about them:

* qa_chn reads a label character by character: ``metrics.characters_f1``; revised.
* choice_eng takes a first letter, or a piece of "ABCD", for an option: ``metrics.choice``; revised.
* many_shot reads a label letter by letter: ``metrics.any_substring``; corrected. GateSight leaves this task as it is.
* repoqa_and_kv in multi-request mode hands whole records to the kv scorer, which then never matches: its kv questions
  score 0 as ``official``, and by their text in the other two.
* mf raises TypeError where a label is a text: such a row is refused when it is read.
* choice_eng's prompt says "The the correct answer is": quoted as it is, because every published number was made so.
"""

from __future__ import annotations

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.scbench import functions, metrics
from kvrepro.benchmarks.scbench.definitions import MULTI_REQUEST
from kvrepro.benchmarks.scbench.definitions import task as definition
from kvrepro.errors import InputError, unknown

OFFICIAL, REVISED, CORRECTED = SCORERS = ("official", "revised", "corrected")

_BY_LABEL = {
    metric.__name__: metric
    for metric in (
        metrics.substring,
        metrics.string_match_all,
        metrics.any_substring,
        metrics.first_number,
        metrics.first_integer,
        metrics.rouge,
        metrics.characters_f1,
        metrics.choice,
    )
}


def turn(example: Example, question: Question) -> dict:
    """What ``info`` holds of a question: its "label" and "name". InputError when it is not the example's."""
    try:
        return example.info["turns"][example.questions.index(question)]
    except (KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"{example.task} item {example.item} does not hold this question's label; make the prompts anew."
        ) from error


def score(example: Example, question: Question, text: str, scorer: str = REVISED) -> float:
    """Score of an answer, from 0 to 1. An empty answer scores 0 in every task.

    Raises InputError for an unknown scorer and for an example that SCBench did not make.
    """
    if scorer not in SCORERS:
        raise unknown("SCBench scorer", scorer, SCORERS, "scorer")
    task, asked = definition(example.task), turn(example, question)
    metric, label = task.subtasks[question.subtask].metric, asked["label"]
    if metric == "function":
        return functions.function(text, asked["name"], example.info["needles"], example.info["lang"])
    if scorer == OFFICIAL and task.name == "repoqa_and_kv" and example.info["mode"] == MULTI_REQUEST:
        return 0.0
    if scorer != OFFICIAL and metric == "characters_f1":
        return metrics.characters_f1(text, metrics.whole(label))
    if scorer != OFFICIAL and metric == "choice":
        return metrics.explicit_choice(text, label)
    if scorer == CORRECTED and metric == "any_substring":
        return metrics.any_substring(text, metrics.whole(label))
    return _BY_LABEL[metric](text, label)
