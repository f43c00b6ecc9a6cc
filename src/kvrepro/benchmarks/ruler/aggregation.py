"""Aggregation: common words (cwe) of a numbered list, and frequent words (fwe) of a coded text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import pairwise

from scipy.special import zeta

from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.ruler.definitions import SENTENCES, Task, wording
from kvrepro.benchmarks.ruler.problem import Problem, Request
from kvrepro.errors import InputError

#: Where not even the published short form of cwe fits, both of its lists shrink once more (ours).
COMPACT = {
    "example": {"words": 12, "common_repeats": 2, "uncommon_repeats": 1},
    "common_repeats": 3,
    "uncommon_repeats": 1,
}


def numbered(words: list[str]) -> str:
    """ "1. word 2. word ..."."""
    return " ".join(SENTENCES["cwe_entry"].format(number=i, word=word) for i, word in enumerate(words, 1))


def repeated(common: list[str], uncommon: list[str], form: Mapping[str, int], rng: random.Random) -> str:
    """The numbered list in random order, each word as often as ``form`` says."""
    words = common * form["common_repeats"] + uncommon * form["uncommon_repeats"]
    rng.shuffle(words)
    return numbered(words)


def build_cwe(task: Task, request: Request) -> Iterator[Problem]:
    """The problem of one item, in the form published for its length, then in shorter ones.

    Words are of the split; the rest of the list follows only when those run out (``info["words_held_out"]``).
    """
    options, sources, rng = task.options, request.sources, request.rng("words")
    common_words = options["common_words"]
    own = draws.of_split(sources.words, sources.split)
    seen = set(own)
    rest = [word for word in dict.fromkeys((*sources.words, *sources.more_words)) if word not in seen]
    need = options["example"]["words"]
    if len(own) < need:
        raise InputError(
            f"cwe needs at least {need} words of split {sources.split!r} and the list has {len(own)}: "
            "pass a longer one."
        )
    order = rng.sample(own, len(own)) + rng.sample(rest, len(rest))
    example_order = rng.sample(own, need)
    common = order[:common_words]
    short = options["short"]
    forms = [short, COMPACT] if request.length < short["below"] else [options, short, COMPACT]
    for form in forms:
        sizes = form["example"]
        words = wording(task)
        example_words = example_order[: sizes["words"]]
        example_list = repeated(
            example_words[:common_words], example_words[common_words:], sizes, request.rng("example order")
        )
        layout = options["example"]
        head = (
            f"{words.instruction}{words.lead}{example_list}{words.question}{words.answer_prefix}{layout['between']}"
            f"{numbered(example_words[:common_words])}{layout['after']}"
        )
        yield Problem(
            wording=words,
            references=tuple(common),
            context=lambda n, form=form: repeated(common, order[common_words:n], form, request.rng("order")),
            smallest=common_words + 1,
            largest=len(order),
            shortage=f"cwe fills the length only with more than {len(order)} distinct words: pass a longer list",
            instruction_head=head,
            details=lambda n, form=form: {
                "repeats": [form["common_repeats"], form["uncommon_repeats"]],
                "distinct_words": n,
                "words_held_out": n <= len(own),
            },
        )


def zipf_counts(n: int, ranks: int, alpha: float) -> list[int]:
    """How often each rank appears in a coded text of about ``n`` words: int(n k^-alpha / zeta(alpha))."""
    total = float(zeta(alpha))
    return [int(n * k**-alpha / total) for k in range(1, ranks + 1)]


def smallest_distinct(answers: int, alpha: float) -> int:
    """The number of words from which on every answer is more frequent than the next rank (rank 1 is noise)."""

    def distinct(n: int) -> bool:
        counts = zipf_counts(n, answers + 2, alpha)[1:]
        return all(a > b for a, b in pairwise(counts))

    last_tie = max(n for n in range(1, 1000) if not distinct(n))
    return last_tie + 1


def build_fwe(task: Task, request: Request) -> Iterator[Problem]:
    """The problem of one item: coded words with Zipf frequencies, the most frequent one replaced by dots."""
    options, rng = task.options, request.rng("words")
    ranks = (request.length - task.max_new_tokens) // options["tokens_per_word"]
    if ranks < options["answers"] + 2:
        least = (options["answers"] + 2) * options["tokens_per_word"] + task.max_new_tokens
        raise InputError(f"fwe needs a length of at least {least} tokens, got {request.length}: raise the length.")
    taken: set[str] = set()
    coded = [draws.coded_word(rng, request.sources.split, options["word_letters"], taken) for _ in range(ranks - 1)]
    words = wording(task)

    def context(n: int) -> str:
        counts = zipf_counts(n, ranks, options["alpha"])
        text = [
            word
            for word, times in zip([SENTENCES["fwe_noise_word"], *coded], counts, strict=True)
            for _ in range(times)
        ]
        request.rng("order").shuffle(text)
        return words.lead + " ".join(text)

    yield Problem(
        wording=words,
        references=tuple(coded[: options["answers"]]),
        context=context,
        smallest=smallest_distinct(options["answers"], options["alpha"]),
    )
