"""Score of an answer by its task's metric, as the published script judges it, and as its configuration meant to.

The script puts the answer prefix before what was generated, unless the model was asked in a chat, and takes the better
of the whole answer and of the line after the prefix. The configurations of retrieval-augmented generation, reranking
and in-context learning want generation to end at a line break, by a key that the script does not read: "score" judges
the whole answer, as published, and STOPPED what came before the first line break. Decoding is greedy, so that this is
what a run that stops there would have given.
"""

from __future__ import annotations

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.helmet import metrics
from kvrepro.benchmarks.helmet.definitions import Task
from kvrepro.benchmarks.helmet.definitions import task as definition
from kvrepro.errors import InputError

STOPPED = "stopped_at_newline"


def score(example: Example, question: Question, text: str) -> dict[str, float]:
    """The "score", and STOPPED for tasks that are meant to stop; raises InputError for an example that HELMET did not
    make."""
    task = definition(example.task)
    found = {"score": _judged(task, example, question, text)}
    if task.meant_to_stop:
        found[STOPPED] = _judged(task, example, question, text.split("\n")[0])
    return found


def _judged(task: Task, example: Example, question: Question, text: str) -> float:
    try:
        answer = example.info["prepended"] + text
        if task.metric == "ndcg_at_10":
            return metrics.ndcg_at_10(metrics.ranking(answer), example.info["relevance"])
    except KeyError as error:
        raise InputError(
            f"{task.name} item {example.item} does not hold {error} for its scorer; make the prompts anew."
        ) from error
    if task.category == "icl":
        return metrics.exact_match(metrics.parsed(answer, task.answer_prefix), question.references)
    prefix = task.answer_prefix if task.name == "multi_lexsum" else "Answer:"  # what the script looks for
    line = metrics.parsed(answer, prefix)
    if task.metric == "choice":
        return _choice(answer, line, question.references)
    metric = getattr(metrics, task.metric)
    return max(metric(answer, question.references), metric(line, question.references))


def _choice(answer: str, line: str, references: tuple[str, ...]) -> float:
    """Letter or "letter. text" as the whole answer or its line, or the latter anywhere in the answer."""
    whole = references[1].lower() in answer.lower()
    return float(whole or metrics.exact_match(answer, references) or metrics.exact_match(line, references))
