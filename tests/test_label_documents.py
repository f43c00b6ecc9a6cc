"""Documents of label corpora: pieces of texts, and contexts in RULER's formats."""

from __future__ import annotations

import re

import pytest

from kvrepro import config, identity
from kvrepro.benchmarks.registry import benchmark
from kvrepro.benchmarks.ruler.draws import EVAL, TRAIN, split_of
from kvrepro.data.corpora import cut, sentences
from kvrepro.data.corpora import documents as of_split
from kvrepro.errors import InputError
from kvrepro.labels.documents import documents, longer, name
from kvrepro.models.tokenizer import load_tokenizer

SOURCES = {"prose": "kjv", "word_count": 50, "list_word_tokens": 2}
ENTRY = {"name": "contexts", "ruler": SOURCES}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("lab-hybrid")


def test_texts_are_cut_as_ever(tokenizer):
    assert documents("stdlib", tokenizer, (300, 400), 4, 7) == cut("stdlib", tokenizer, (300, 400), 4, 7, join=True)
    assert name("stdlib") == "stdlib" and name(ENTRY) == "contexts"


def test_contexts_are_of_many_tasks_and_of_the_length_asked(tokenizer):
    found = documents(ENTRY, tokenizer, (750, 1250), 26, 0)
    assert len(found) == 26 and len(set(map(tuple, found))) == 26
    assert all(400 < len(ids) <= 1250 for ids in found)
    openings = {tokenizer.decode(ids)[:40] for ids in found}
    assert len(openings) >= 5  # of niah, vt, cwe, fwe and questions
    assert found == documents(ENTRY, tokenizer, (750, 1250), 26, 0)
    assert found[0] != documents(ENTRY, tokenizer, (750, 1250), 1, 1)[0]


def test_contexts_leave_room_for_a_question_and_its_answer(tokenizer):
    missing = {1000 - len(ids) for ids in documents(ENTRY, tokenizer, (1000, 1000), 26, 0)}
    assert 80 <= min(missing) < 100 and 200 < max(missing) <= 280  # as documents says


def test_no_string_and_no_sentence_of_a_context_is_one_of_an_evaluation(tokenizer):
    texts = [tokenizer.decode(ids) for ids in documents(ENTRY, tokenizer, (900, 1100), 39, 0)]
    numbers = {number for text in texts for number in re.findall(r"\b\d{7}\b", text)}
    uuids = {key for text in texts for key in re.findall(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", text)}
    assert len(numbers) > 10 and len(uuids) > 10
    assert {split_of(string) for string in numbers | uuids} == {TRAIN}
    held_out = [text for text in sentences("kjv", "heldout") if len(text) > 60]
    assert len(held_out) > 100 and not any(sentence in text for sentence in held_out for text in texts)
    settings = {"sources": SOURCES, "tasks": ["niah_single_2"], "items": 1, "length": 1000}
    (example,) = next(benchmark("ruler").generate(settings, tokenizer, 42, False, True))
    assert {split_of(number) for number in re.findall(r"\b\d{7}\b", example.context)} == {EVAL}
    assert any(sentence in example.context for sentence in held_out)


def test_splits_have_other_contexts(tokenizer):
    parts = [documents(ENTRY, tokenizer, (800, 1000), 13, 0, split=split) for split in ("train", "heldout")]
    assert not {tuple(ids) for ids in parts[0]} & {tuple(ids) for ids in parts[1]}


def test_longer_documents_are_held_out_from_what_estimators_are_trained_on(tokenizer):
    found = longer(["stdlib", ENTRY, "kjv"], tokenizer, 1500, 4, 0)
    assert [len(ids) for ids in found] == [1500, len(found[1]), 1500, 1500] and len(found[1]) < 1500
    for place, corpus in ((0, "stdlib"), (2, "kjv"), (3, "stdlib")):
        lines = [line for line in tokenizer.decode(found[place]).splitlines()[1:-1] if len(line) > 60]
        held, trained = ("\n".join(of_split(corpus, split)) for split in ("heldout", "train"))
        assert lines and all(line in held for line in lines) and not all(line in trained for line in lines)
    assert found[1] == documents(ENTRY, tokenizer, (1500, 1500), 1, 0, split="heldout")[0]


def test_lengths_that_no_task_fits_are_one_sentence(tokenizer):
    with pytest.raises(InputError, match=r"labels\.corpora: 'contexts': no task of RULER fits 20 tokens"):
        documents(ENTRY, tokenizer, (20, 20), 1, 0)


def test_lab_tiers_label_contexts_and_the_papers_do_not():
    for tier, expected in (("quick", ["contexts"]), ("lab", ["contexts"]), ("paper", [])):
        entries = config.load({"tier": tier})["labels"]["corpora"]
        assert [name(entry) for entry in entries if not isinstance(entry, str) and "ruler" in entry] == expected


def test_the_identity_of_contexts_is_that_of_their_sources():
    first = identity.corpus(ENTRY)
    assert first == identity.corpus(ENTRY | {"name": "other"})
    assert first != identity.corpus({"name": "contexts", "ruler": SOURCES | {"word_count": 60}})
    assert first != identity.corpus({"name": "contexts", "ruler": SOURCES | {"prose": "maths"}})


def test_a_haystack_that_is_none_is_told_before_any_job():
    given = {"tier": "quick", "labels": {"corpora": ["kjv", {"name": "contexts", "ruler": {"prose": "kjw"}}]}}
    with pytest.raises(InputError, match="kjw"):
        config.load(given)
