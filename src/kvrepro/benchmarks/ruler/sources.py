"""Where haystack prose, words and question-answer documents come from: generated offline, or the official files.

``offline`` needs only sentences and words and makes the facts of qa_1 and qa_2 itself. ``with_files`` puts the files of
the official scripts in the place of any of them: SQuAD (dev-v2.0.json), HotpotQA (hotpot_dev_distractor_v1.json),
PaulGrahamEssays.json and english_words.json.
"""

from __future__ import annotations

import bisect
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from kvrepro.benchmarks.ruler import facts
from kvrepro.benchmarks.ruler.draws import EVAL, TRAIN, of_length
from kvrepro.data import corpora
from kvrepro.data.corpora import SENTENCE_END
from kvrepro.errors import InputError, unknown

#: Keys of ``ruler.sources`` that hold the path of a file of the official scripts.
OFFICIAL_FILES = ("squad", "hotpotqa", "essays", "english_words")


def sentences(text: str) -> list[str]:
    """``text`` cut into sentences, white space collapsed as the official script does.

    A rule of punctuation, where the official script uses NLTK's trained model: they differ at abbreviations, which
    moves a needle by half a sentence.
    """
    return [part for part in SENTENCE_END.split(" ".join(text.split())) if part]


@dataclass(frozen=True)
class Prose:
    """Sentences in text order. ``from_start``: every item reads from the first one, as the official script does;
    otherwise each item starts at a random sentence, so that a hundred items do not share one haystack."""

    sentences: tuple[str, ...]
    from_start: bool = False

    @cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(len(sentence.split()) for sentence in self.sentences))

    def start(self, rng: random.Random) -> int:
        """The sentence an item begins with."""
        return 0 if self.from_start else rng.randrange(len(self.sentences))

    def words(self, start: int, count: int) -> list[str]:
        """The sentences of ``count`` words from sentence ``start`` on, the last one cut; begins anew at the end."""
        ends, total = self._ends, self._ends[-1]
        offset = ends[start - 1] if start else 0
        rounds, rest = divmod(offset + count, total)
        last = bisect.bisect_right(ends, rest)
        cut = rest - (ends[last - 1] if last else 0)
        whole = list(self.sentences) * rounds + list(self.sentences[:last])
        if cut:
            whole.append(" ".join(self.sentences[last].split()[:cut]))
        return whole[start:]


@dataclass(frozen=True)
class Quiz:
    """A question, the documents that answer it, and others to hide them among (``others`` never ends)."""

    question: str
    references: tuple[str, ...]
    golden: tuple[str, ...]
    others: Iterator[str]


class QuizSource(Protocol):
    """Anything that can ask question number ``item``."""

    def quiz(self, item: int, rng: random.Random, split: str | None) -> Quiz:
        """The question of an item, drawn with ``rng`` where it is random."""
        ...


@dataclass(frozen=True)
class GeneratedFacts:
    """Questions about generated people and towns: one hop (qa_1) or two (qa_2)."""

    hops: int

    def quiz(self, item: int, rng: random.Random, split: str | None) -> Quiz:
        """A new world for each item; the other documents are worlds of other people and towns."""
        taken: set[str] = set()
        asked = facts.world(rng, split, taken)
        if self.hops == 1:
            document, queries = rng.choice([(asked.person, asked.person_queries), (asked.town, asked.town_queries)])
            golden: tuple[str, ...] = (document,)
        else:
            golden, queries = (asked.person, asked.town), asked.two_hop
        query = rng.choice(queries)

        def others() -> Iterator[str]:
            if self.hops == 1:
                yield asked.town if golden[0] == asked.person else asked.person
            while True:
                other = facts.world(rng, split, taken)
                yield other.person
                yield other.town

        return Quiz(query.question, (query.answer,), golden, others())


@dataclass(frozen=True)
class FileQuestion:
    """A question of a data set; documents by index. ``near`` are the first choice of other documents."""

    question: str
    references: tuple[str, ...]
    golden: tuple[int, ...]
    near: tuple[int, ...]


@dataclass(frozen=True)
class FileQuestions:
    """The questions and all documents of a data set, in the order of its file."""

    name: str
    questions: tuple[FileQuestion, ...]
    documents: tuple[str, ...]

    def quiz(self, item: int, rng: random.Random, split: str | None) -> Quiz:
        """Question ``item`` of the file; near documents first, then all others, then all again."""
        if item >= len(self.questions):
            raise InputError(f"{self.name} has {len(self.questions)} questions: ask for at most that many items.")
        asked = self.questions[item]

        def others() -> Iterator[str]:
            used = {*asked.golden, *asked.near}
            rest = [index for index in range(len(self.documents)) if index not in used]
            for index in itertools.chain(rng.sample(asked.near, len(asked.near)), rng.sample(rest, len(rest))):
                yield self.documents[index]
            yield from itertools.cycle(self.documents)

        golden = tuple(self.documents[index] for index in asked.golden)
        return Quiz(asked.question, asked.references, golden, others())


@dataclass(frozen=True)
class Sources:
    """Everything a task draws from. ``split`` limits the drawn strings to a split (None: no limit, as published).

    ``words`` are the list words of cwe; ``more_words`` follow when those run out. Word keys and values are one word of
    ``first_words``, a hyphen and one of ``second_words``. ``quizzes`` has the keys "squad" (for qa_1) and "hotpotqa"
    (for qa_2).
    """

    prose: Prose | None
    words: tuple[str, ...]
    first_words: tuple[str, ...]
    second_words: tuple[str, ...]
    quizzes: Mapping[str, QuizSource] = field(default_factory=dict)
    more_words: tuple[str, ...] = ()
    split: str | None = EVAL

    def __post_init__(self) -> None:
        if self.split not in (EVAL, TRAIN, None):
            raise unknown("split", self.split, (EVAL, TRAIN), "split")


def offline(
    prose: Sequence[str], words: Sequence[str], split: str | None = EVAL, list_words: Sequence[str] | None = None
) -> Sources:
    """Sources that need no download: ``prose`` are the sentences of a text (see ``sentences``), ``words`` common words,
    from which keys are paired; ``list_words`` those of cwe (by default all); questions are about generated facts."""
    distinct = tuple(dict.fromkeys(words))
    return Sources(
        prose=Prose(tuple(text for text in prose if text.split())) if any(text.split() for text in prose) else None,
        words=distinct if list_words is None else tuple(dict.fromkeys(list_words)),
        first_words=distinct,
        second_words=distinct,
        quizzes={"squad": GeneratedFacts(1), "hotpotqa": GeneratedFacts(2)},
        split=split,
    )


def check_sentences(sources: Sources, name: str) -> None:
    """InputError unless there are sentences for the stand-ins of a benchmark of this name."""
    if sources.prose is None:
        raise InputError(f"{name}'s stand-ins need the sentences of a text; name a corpus as sources.prose.")


def from_settings(settings: Mapping[str, Any], tokenizer: Any, split: str | None = EVAL) -> Sources:
    """Sources as the section ``ruler.sources`` of a config names them.

    ``prose`` is a corpus of the repository, whose held-out sentences are the haystack; ``word_count`` the occurrences
    in all corpora of the repository from which on a word is used; ``list_word_tokens`` the tokens of a list word of cwe
    in ``tokenizer`` (0: any number). The other keys are those of :func:`with_files`. ``split`` limits the drawn strings
    to those a lab model was not trained on; other models take any, as published (None). TRAIN is what no evaluation
    uses: the other strings, and the sentences that are not held out.
    """
    files = dict(settings)
    prose, count, length = (files.pop(key, None) for key in ("prose", "word_count", "list_word_tokens"))
    words = corpora.common_words(count) if count else []
    listed = of_length(words, length or 0, lambda s: len(tokenizer.encode(s, add_special_tokens=False)))
    haystack = corpora.sentences(prose, "train" if split == TRAIN else "heldout") if prose else []
    return with_files(offline(haystack, words, split, listed), **files)


def with_files(
    sources: Sources,
    *,
    squad: Path | None = None,
    hotpotqa: Path | None = None,
    essays: Path | None = None,
    english_words: Path | None = None,
    wonderwords: bool = False,
) -> Sources:
    """``sources`` with official files in the place of what they replace.

    ``wonderwords`` takes keys and list words from the package of that name, as the official scripts do. Raises
    InputError for a file that is missing or of another format.
    """
    quizzes = dict(sources.quizzes)
    if squad is not None:
        quizzes["squad"] = read_squad(squad)
    if hotpotqa is not None:
        quizzes["hotpotqa"] = read_hotpotqa(hotpotqa)
    changed: dict[str, Any] = {"quizzes": quizzes}
    if essays is not None:
        changed["prose"] = read_essays(essays)
    if english_words is not None:
        changed["more_words"] = read_english_words(english_words)
    if wonderwords:
        nouns, adjectives, verbs = wonderwords_lists()
        changed |= {
            "words": tuple(sorted({*nouns, *adjectives, *verbs})),
            "first_words": adjectives,
            "second_words": nouns,
        }
    return replace(sources, **changed)


def _read(path: Path, form: str, parse: Callable[[Any], Any]) -> Any:
    """``parse`` applied to the JSON of ``path``; one sentence that names file and expected format when it fails."""
    try:
        return parse(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of {form}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: is not {form} ({type(error).__name__}: {error}); give the path of one.") from error


def _filled(result: Sequence[Any]) -> Sequence[Any]:
    if not result:
        raise ValueError("it holds no entry")
    return result


def read_essays(path: Path) -> Prose:
    """PaulGrahamEssays.json of the official scripts: an object whose "text" is all essays in one string."""
    form = 'PaulGrahamEssays.json, an object with the key "text"'
    return _read(path, form, lambda data: Prose(tuple(_filled(sentences(data["text"]))), from_start=True))


def read_english_words(path: Path) -> tuple[str, ...]:
    """english_words.json of the official scripts: an object whose values are words."""

    def parse(data: Any) -> tuple[str, ...]:
        words = _filled(list(data.values()))
        if not all(isinstance(word, str) for word in words):
            raise ValueError("a value is not a string")
        return tuple(dict.fromkeys(words))

    return _read(path, "english_words.json, an object whose values are words", parse)


def read_squad(path: Path) -> FileQuestions:
    """SQuAD 2.0: answerable questions in file order, every alias a reference, the article's other paragraphs near."""

    def parse(data: Any) -> FileQuestions:
        articles = [[paragraph["context"] for paragraph in article["paragraphs"]] for article in data["data"]]
        documents = sorted({text for article in articles for text in article})
        index = {text: place for place, text in enumerate(documents)}
        questions = [
            FileQuestion(
                question=entry["question"],
                references=tuple(_filled([answer["text"] for answer in entry["answers"]])),
                golden=(index[paragraph["context"]],),
                near=tuple(index[text] for text in dict.fromkeys(article) if text != paragraph["context"]),
            )
            for article, whole in zip(articles, data["data"], strict=True)
            for paragraph in whole["paragraphs"]
            for entry in paragraph["qas"]
            if not entry.get("is_impossible", False)
        ]
        return FileQuestions(str(path), tuple(_filled(questions)), tuple(documents))

    return _read(path, "a SQuAD file (dev-v2.0.json)", parse)


def read_hotpotqa(path: Path) -> FileQuestions:
    """HotpotQA, distractor setting: the paragraphs that hold supporting facts are golden, the rest of its ten near.

    The official script puts all ten first. So does this one as soon as ten fit: near documents are taken before others.
    """

    def parse(data: Any) -> FileQuestions:
        def text(title: str, parts: list[str]) -> str:
            return f"{title}\n{''.join(parts)}"

        documents = sorted({text(*paragraph) for entry in data for paragraph in entry["context"]})
        index = {document: place for place, document in enumerate(documents)}
        questions = []
        for entry in data:
            own = {index[text(*paragraph)]: paragraph[0] for paragraph in entry["context"]}
            supporting = {title for title, _ in entry["supporting_facts"]}
            questions.append(
                FileQuestion(
                    question=entry["question"],
                    references=(entry["answer"],),
                    golden=tuple(_filled([place for place, title in own.items() if title in supporting])),
                    near=tuple(place for place, title in own.items() if title not in supporting),
                )
            )
        return FileQuestions(str(path), tuple(_filled(questions)), tuple(documents))

    return _read(path, "a HotpotQA file (hotpot_dev_distractor_v1.json)", parse)


def wonderwords_lists() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Nouns, adjectives and verbs of the package wonderwords."""
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise InputError("the official word lists need the package wonderwords: pip install wonderwords.") from error
    nouns, adjectives, verbs = (
        tuple(RandomWord.read_words(f"{kind}list.txt")) for kind in ("noun", "adjective", "verb")
    )
    return nouns, adjectives, verbs
