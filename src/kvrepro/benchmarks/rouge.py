"""ROUGE, by the package rouge-score, which the published evaluations use as well."""

from __future__ import annotations

from collections.abc import Sequence

from kvrepro.errors import InputError


def rouge_f1(answer: str, references: Sequence[str], kind: str, stem: bool) -> float:
    """The highest F1 over the references, from 0 to 1; ``kind`` is "rougeL", or "rougeLsum", which goes line by line,
    and ``stem`` takes off the ends of words first. InputError without the package."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise InputError(
            "summaries and long answers are scored with the package rouge-score: pip install rouge-score."
        ) from error
    scorer = RougeScorer([kind], use_stemmer=stem)
    return max(float(scorer.score(target=one, prediction=answer)[kind].fmeasure) for one in references)
