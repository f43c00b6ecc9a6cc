"""The metrics of SCBench for one prediction and its label, from 0 to 1, as the published code computes them.

Faults of the published code stand here as they are, each named in its docstring; ``revised`` ones follow below. What
the published code would crash on (a label of another type) is refused when rows are read, and an InputError here.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvrepro.benchmarks.rouge import rouge_f1
from kvrepro.errors import InputError

OPTIONS = "ABCD"

#: Punctuation that the Chinese normalisation removes besides ASCII's.
CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､"
    "、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_REMOVED = str.maketrans("", "", string.punctuation + CHINESE_PUNCTUATION)


def substring(prediction: str, label: str) -> float:
    """kv, prefix_suffix: whether the label stands in the prediction, case and all."""
    return float(label in prediction)


def string_match_all(prediction: str, label: list[str]) -> float:
    """vt: share of the labels that the prediction contains, whatever their case, rounded to two digits as published."""
    return round(sum(one.lower() in prediction.lower() for one in label) / len(label), 2)


def any_substring(prediction: str, label: Iterable[str]) -> float:
    """qa_eng, many_shot: whether any label stands in the prediction, whatever its case.

    Fault of the published code: a label that is one text is walked through letter by letter, so that "(B)" is right
    where "(A)" is asked for. many_shot's published labels are such texts.
    """
    return float(any(one.upper() in prediction.strip().upper() for one in label))


def first_number(prediction: str, label: float) -> float:
    """mf: whether the first number of the prediction is the label; a whole label compares without decimals.

    A label that is no number makes the published code raise TypeError; here it is an InputError.
    """
    if isinstance(label, bool) or not isinstance(label, int | float):
        raise InputError(f"the label of a number must be a number, got {label!r}; make the prompts anew.")
    found = re.search(r"\d+\.\d+|\d+", prediction)
    if found is None:
        return 0.0
    number = float(found[0])
    return float((int(number) if isinstance(label, int) else number) == label)


def first_integer(prediction: str, label: str) -> float:
    """passkey: whether the first run of digits is the label."""
    found = re.search(r"[0-9]+", prediction)
    return float(found is not None and found[0] == label)


def rouge(prediction: str, label: str) -> float:
    """summary: ROUGE-Lsum F1 without stemming, as the published code has it through "evaluate"."""
    return rouge_f1(prediction, [label], "rougeLsum", stem=False)


def normalised_chinese(text: str) -> str:
    """Lower case, without punctuation and white space."""
    return "".join(text.lower().translate(_REMOVED).split())


def f1(prediction: str, label: str) -> float:
    """F1 of the characters two texts share, each as often as both have it."""
    shared = sum((Counter(prediction) & Counter(label)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(prediction), shared / len(label)
    return 2 * precision * recall / (precision + recall)


def characters_f1(prediction: str, label: Iterable[str]) -> float:
    """qa_chn: highest character F1 over the labels.

    Fault of the published code: a label that is one text, as published, is walked through character by character, so
    that a perfect answer of n different characters scores 2 / (n + 1).
    """
    given = normalised_chinese(prediction)
    return max(f1(given, normalised_chinese(one)) for one in label)


_BREAKS = str.maketrans(dict.fromkeys("\n\"'.,?!{}", " "))
_BEFORE_ANSWER = ("answer is:", "answer:", "answer is", "option is")


def choice(prediction: str, label: list[str]) -> float:
    """choice_eng: the option read from the prediction; ``label`` is the answer's text and its letter.

    Faults of the published code: a prediction that begins with A, B, C or D answers with that letter ("Based on ..." is
    option B); and of the words further on, any part of "ABCD" ("AB") counts as the answer, and as a wrong one.
    """
    text = prediction.strip()
    if not text:
        return 0.0
    if text[0] in OPTIONS:
        return float(text[0] in label)
    if text in label:
        return 1.0
    text = re.sub(" +", " ", text.translate(_BREAKS))
    for prefix in _BEFORE_ANSWER:
        place = text.find(prefix)
        if place >= 0:
            return float(text[place + len(prefix) + 1 :].startswith(tuple(label)))
    for word in text.split():
        if word in OPTIONS:
            return float(word in label)
    return 0.0


#: "B", "B. Beta", "B) Beta", "(B)", "(B) Beta", "Option B", "Answer: B", "The correct answer is (B)." and no article.
_OPTION = re.compile(
    r"""(?ix)
    (?: (?:the\s+)? (?:correct\s+)? answer \s* (?: is\s*:? | : ) \s* (?:option\s+)? | option \s* :? \s* )?
    (?: \( (?-i:(?P<in>[A-D])) \) | (?-i:(?P<bare>[A-D])) (?= \s*$ | \s*\n | \s*[.):,;] ) )
    """
)
_WORDED = re.compile(r"(?i:(?:the\s+)?(?:correct\s+)?option)\s*:?\s*([A-D])\b")


def explicit_choice(prediction: str, label: list[str]) -> float:
    """choice_eng as revised (GateSight Appendix A): only an explicit option at the beginning counts ("B", "B. Beta",
    "(B)", "Option B", "Answer: B"); everything else is unresolved and scores 0."""
    text = prediction.strip()
    found = _OPTION.match(text) or _WORDED.match(text)
    letter = next((group for group in found.groups() if group), None) if found else None
    return float(letter == label[1])


def whole(label: Any) -> list[str]:
    """A label as a list of complete references."""
    return [label] if isinstance(label, str) else list(label)
