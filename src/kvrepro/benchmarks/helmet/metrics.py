"""The metrics of HELMET's tasks for one answer, from 0 to 1, as the published code computes them.

Faults of the published code stand here as they are, each named in its docstring.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence

from kvrepro.benchmarks.rouge import rouge_f1

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
DEPTH = 10  #: of NDCG@10


def normalised(text: str) -> str:
    """Lower case, without ASCII's punctuation, articles and superfluous white space (SQuAD's rule)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Whether the normalised answer is one of the normalised references.

    Fault of the published code: "A" is an article, so that an empty answer is right where the label is option A.
    """
    return float(any(normalised(answer) == normalised(one) for one in references))


def substring_exact_match(answer: str, references: Sequence[str]) -> float:
    """Whether a normalised reference stands in the normalised answer."""
    return float(any(normalised(one) in normalised(answer) for one in references))


def rouge_l_f1(answer: str, references: Sequence[str]) -> float:
    """Highest ROUGE-L F1 over the references, with stemming."""
    return rouge_f1(answer, references, "rougeL", stem=True)


def parsed(answer: str, prefix: str = "Answer:") -> str:
    """What follows the first ``prefix`` on its line, or the first line where there is no prefix."""
    for pattern in (f"(?:{prefix})(.*)(?:\n|$)", r"(?:^)(.*)(?:\n|$)"):
        if found := re.search(pattern, answer, re.IGNORECASE):
            return re.sub(f"^{re.escape(prefix)}", "", found[1].strip(), flags=re.IGNORECASE).strip()
    return ""


def ranking(answer: str) -> list[str]:
    """Identifiers in the order of a ranking: the longest chain "3 > 1 > 2" of the answer, each identifier once.

    Fault of the published code: the longest chain is sought in the whole answer, and by its characters, so that one
    long number ahead of a shorter chain is taken for the ranking.
    """
    text = re.sub(r"[\[\]:]", "", answer).lower().replace("id", "")
    longest = max((found[0] for found in re.finditer(r"(\d+)(?:\s*>\s*(\d+))*", text)), key=len, default="")
    return list(dict.fromkeys(number.strip() for number in longest.split(">") if number.strip().isdigit()))


def ndcg_at_10(ranked: Sequence[str], relevance: Mapping[str, int]) -> float:
    """Normalised discounted cumulative gain of the first ten, with the labels as gains, as trec_eval computes
    ndcg_cut_10; an identifier without a label gains nothing and takes its rank. Rounded to five digits as published."""

    def gain(labels: Sequence[int]) -> float:
        return sum(label / math.log2(rank + 2) for rank, label in enumerate(labels[:DEPTH]))

    best = gain(sorted(relevance.values(), reverse=True))
    return round(gain([relevance.get(name, 0) for name in ranked]) / best, 5) if best else 0.0
