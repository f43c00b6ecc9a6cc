"""RULER from the files of the official scripts, in their formats."""

from __future__ import annotations

import json
import random
import re

import pytest
from ruler_tools import offline, prose, tokenizer, words

from kvrepro import identity
from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.registry import benchmark
from kvrepro.benchmarks.ruler import sources
from kvrepro.data import corpora
from kvrepro.errors import InputError


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files in the formats of SQuAD 2.0, HotpotQA (distractor), PaulGrahamEssays and english_words."""
    folder, rng = tmp_path_factory.mktemp("official"), random.Random(3)
    texts = iter(prose())

    def paragraph(mark):
        return f"{mark} " + " ".join(next(texts) for _ in range(4))

    def question(mark, answers, impossible=False):
        return {"id": mark, "question": f"Which {mark}?", "answers": answers, "is_impossible": impossible}

    articles = []
    for a in range(4):
        paragraphs = []
        for p in range(5):
            answers = [{"text": f"alias{n} of {a}-{p}", "answer_start": 0} for n in range(3)]
            qas = [question(f"q{a}{p}", answers), question(f"no{a}{p}", [], impossible=True)]
            paragraphs.append({"context": paragraph(f"alias1 of {a}-{p}"), "qas": qas})
        articles.append({"title": f"Article {a}", "paragraphs": paragraphs})
    hotpot = []
    for n in range(6):
        context = [[f"Title {n}-{k}", [f"Sentence {k}.", " " + paragraph(f"{n}-{k}")]] for k in range(10)]
        rng.shuffle(context)
        facts = [[f"Title {n}-3", 0], [f"Title {n}-7", 1], [f"Title {n}-3", 1]]
        entry = {"_id": str(n), "question": f"What about {n}?", "answer": f"answer {n}", "type": "bridge"}
        hotpot.append(entry | {"level": "hard", "supporting_facts": facts, "context": context})
    essays = "A first one here.\n\n  It has “quotes.” Then 3.5 of e.g. something! Is it so? Yes\tit is. " * 400
    return {
        "squad": write(folder / "squad.json", {"version": "v2.0", "data": articles}),
        "hotpotqa": write(folder / "hotpotqa.json", hotpot),
        "essays": write(folder / "PaulGrahamEssays.json", {"text": essays}),
        "english_words": write(folder / "english_words.json", {str(i): f"w{w}" for i, w in enumerate(words())}),
    }


def documents(example):
    return re.split(r"(?:\n\n|^)Document \d+:\n", example.context)[1:]


def test_a_config_section_names_its_sources(files):
    found = ruler.from_settings({"prose": "kjv", "word_count": 50, "list_word_tokens": 2}, tokenizer())
    assert found.prose and found.words and set(found.words) < set(found.first_words)
    assert {len(tokenizer().encode(f" {word}", add_special_tokens=False)) for word in found.words} == {2}
    free = ruler.from_settings({"prose": "kjv", "word_count": 50}, tokenizer())
    assert free.words == free.first_words == found.first_words
    official = ruler.from_settings({"essays": files["essays"], "squad": files["squad"]}, tokenizer())
    assert official.prose.from_start and not official.words and official.quizzes["squad"].name


def test_what_the_items_are_made_of_is_hashed(files, tmp_path):
    def texts(**sources):
        return identity.texts(benchmark("ruler"), {"sources": sources})

    words = texts(prose="kjv", word_count=50)
    assert set(words) == set(corpora.names()) and len(set(words.values())) == len(words)
    assert set(texts(prose="kjv")) == {"kjv"}
    copies = [write(tmp_path / f"{i}.json", files["essays"].read_text() + " " * (i // 2)) for i in range(3)]
    first, same, other = (texts(essays=str(path))["sources.essays"] for path in copies)
    assert first == same != other
    assert texts(essays=str(tmp_path / "none")) == {"sources.essays": "missing"}


def test_squad(files):
    official = ruler.with_files(offline(), squad=files["squad"])
    read = official.quizzes["squad"]
    assert len(read.questions) == 20 and len(read.documents) == 20 and list(read.documents) == sorted(read.documents)
    for item, example in enumerate(ruler.generate("qa_1", 20, 1500, tokenizer(), 42, official)):
        a, p = divmod(item, 5)  # questions in the order of the file, unanswerable ones left out
        assert f"Question: Which q{a}{p}? Answer:" in example.questions[0].text
        assert example.questions[0].references == tuple(f"alias{n} of {a}-{p}" for n in range(3))
        golden = [text for text in documents(example) if text.startswith(f"alias1 of {a}-{p}")]
        assert len(golden) == 1
        near = [text for text in documents(example) if text.startswith(f"alias1 of {a}-")]
        assert len(near) == min(5, len(documents(example)))  # the article's other paragraphs come before others
    assert ruler.score("qa_1", "alias2 of 0-0", example.questions[0].references) == 0.0


def test_squad_repeats_documents_where_the_length_asks_for_more_than_there_are(files):
    official = ruler.with_files(offline(), squad=files["squad"])
    example = ruler.generate("qa_1", 1, 8192, tokenizer(), 42, official)[0]
    assert len(documents(example)) > 20 == len(set(documents(example)))


def test_too_many_items_for_the_file(files):
    with pytest.raises(InputError, match=r"squad\.json has 20 questions"):
        ruler.generate("qa_1", 21, 1500, tokenizer(), 42, ruler.with_files(offline(), squad=files["squad"]))


def test_hotpotqa(files):
    official = ruler.with_files(offline(), hotpotqa=files["hotpotqa"])
    for length, all_ten in ((700, False), (4096, True)):
        for item, example in enumerate(ruler.generate("qa_2", 6, length, tokenizer(), 42, official)):
            titles = [text.split("\n")[0] for text in documents(example)]
            assert {f"Title {item}-3", f"Title {item}-7"} <= set(titles)
            assert ({f"Title {item}-{k}" for k in range(10)} <= set(titles)) == all_ten
            if not all_ten:
                assert all(title.startswith(f"Title {item}-") for title in titles)
            assert example.questions[0].references == (f"answer {item}",)
            assert documents(example)[0].split("\n")[1].startswith("Sentence ")


def test_essays_are_read_from_their_start(files):
    official = ruler.with_files(offline(), essays=files["essays"])
    assert official.prose.sentences[:6] == (
        "A first one here.",
        "It has “quotes.”",
        "Then 3.5 of e.g. something!",
        "Is it so?",
        "Yes it is.",
        "A first one here.",
    )
    contexts = [example.context for example in ruler.generate("niah_single_2", 3, 1024, tokenizer(), 42, official)]
    bare = [re.sub(r"One of the special magic numbers for \S+ is: \d+\. ?", "", context) for context in contexts]
    shortest = min(map(len, bare)) - 1
    assert len({text[:shortest] for text in bare}) == 1 and bare[0].startswith("A first one here. It has")
    other = [example.context[:60] for example in ruler.generate("niah_single_2", 3, 1024, tokenizer(), 42, offline())]
    assert len(set(other)) == 3  # without the file each item starts elsewhere


def test_english_words_follow_when_the_list_runs_out(files):
    few = ruler.offline([], words()[:400])
    with pytest.raises(InputError, match="distinct words"):
        ruler.generate("cwe", 1, 16384, tokenizer(), 1, few)
    example = ruler.generate(
        "cwe", 1, 16384, tokenizer(), 1, ruler.with_files(few, english_words=files["english_words"])
    )
    assert re.search(r"\d+\. w[a-z]+", example[0].context)


def test_wonderwords():
    pytest.importorskip("wonderwords")
    official = ruler.with_files(ruler.offline([], []), wonderwords=True)
    example = ruler.generate("niah_multikey_2", 1, 1024, tokenizer(), 1, official)[0]
    first, second = re.search(r"for (\w+)-(.+?) is:", example.context).groups()
    assert first in official.first_words and second in official.second_words
    assert {"big", "table", "eat"} <= set(official.words)


def test_bad_files(files, tmp_path):
    readers = {
        sources.read_squad: ["[]", "{", '{"data": []}', '{"data": [{"paragraphs": [{"qas": []}]}]}'],
        sources.read_hotpotqa: [
            "{}",
            "[]",
            "[{}]",
            '[{"context": [["t", ["s"]]], "supporting_facts": [], "question": ""}]',
        ],
        sources.read_essays: ["[]", "{}", '{"text": 3}', '{"text": "  "}'],
        sources.read_english_words: ["[]", "{}", '{"0": 1}', "\x00"],
    }
    for reader, texts in readers.items():
        with pytest.raises(InputError, match=r"none\.json: cannot be read"):
            reader(tmp_path / "none.json")
        for text in texts:
            with pytest.raises(InputError, match=r"bad\.json: is not .*; give the path of one\.$") as raised:
                reader(write(tmp_path / "bad.json", text))
            assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="pass a squad source"):
        bare = sources.Sources(prose=None, words=(), first_words=(), second_words=())
        ruler.generate("qa_1", 1, 1024, tokenizer(), 1, bare)
