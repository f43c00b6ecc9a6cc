"""Generated stand-ins of HELMET's fourteen tasks: lengths, determinism, prompts, and that every answer is there."""

from __future__ import annotations

import random
import re

import pytest
from helmet_tools import make
from ruler_tools import offline, text_of, tokenizer

from kvrepro.benchmarks import helmet
from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.helmet.definitions import SOURCE
from kvrepro.benchmarks.helmet.definitions import task as definition
from kvrepro.benchmarks.helmet.stand_ins.draft import DEPTHS, at_depth
from kvrepro.benchmarks.prompts import read_prompts, write_prompts
from kvrepro.benchmarks.registry import benchmark
from kvrepro.benchmarks.ruler import draws
from kvrepro.errors import InputError

SETTINGS = {"tasks": ["nlu"], "items": 1, "length": 1600, "sources": {"prose": "kjv", "word_count": 200}}


def total(example, chat=False):
    prompt = render(example, tokenizer(), chat)
    return len(prompt.prefix) + len(prompt.questions[0]) + example.questions[0].max_new_tokens


def test_the_paper_names_fourteen_tasks_of_five_categories():
    assert len(helmet.TASKS) == 14 and len({definition(task).category for task in helmet.TASKS}) == 5
    assert helmet.judged(helmet.TASKS) == ("narrativeqa", "infbench_sum_eng", "multi_lexsum")
    assert {"repository", "commit", "licence", "copyright"} <= set(SOURCE)


@pytest.mark.parametrize("task", helmet.TASKS)
def test_fills_the_length_without_exceeding_it(task):
    for tokens in (2600, 3800):
        for example in make(task, tokens):
            assert example.info["length"] == total(example) <= tokens
            assert total(example) > tokens - 150
            assert example.benchmark == "helmet_stand_in" and example.info["stand_in"] is True


@pytest.mark.parametrize("task", helmet.TASKS)
def test_items_depend_on_seed_and_number_only(task):
    first = make(task)
    assert make(task) == first and make(task, n=1) == first[:1]
    assert first[0].context != first[1].context != make(task, seed=43)[1].context
    assert make(task, 3800)[0].questions[0].text == first[0].questions[0].text
    if task != "msmarco_rerank_psg":  # a longer list has a longer ranking
        assert make(task, 3800)[0].questions[0].references == first[0].questions[0].references


@pytest.mark.parametrize("task", helmet.TASKS)
def test_right_answers_score_and_wrong_ones_do_not(task):
    for example in make(task, n=3):
        question = example.questions[0]
        assert helmet.score(example, question, f" {question.references[0]}")["score"] > 0.95
        assert helmet.score(example, question, " #")["score"] == 0
        if definition(task).category in ("rag", "longqa") and task != "infbench_choice_eng":
            assert question.references[0] in example.context


@pytest.mark.parametrize("task", helmet.TASKS)
def test_the_prompt_is_the_published_one(task):
    example, quoted = make(task, n=1)[0], definition(task)
    opening = quoted.prompt.replace("{demos}", "{context}").split("{context}")[0].format()
    assert example.instruction == opening and example.chat is quoted.chat
    assert text_of(example).endswith(quoted.join + quoted.answer_prefix) and "{context}" not in text_of(example)
    shown = len(re.findall(r"\n(?:Answer|Ranking|Summary): |^Summary: ", example.context, re.MULTILINE))
    assert quoted.category == "icl" or shown == quoted.shots


def test_in_a_chat_the_answer_prefix_is_left_out_and_some_tasks_have_none():
    asked, plain = make("infbench_qa_eng", chat=True)[0], make("kilt_nq", chat=True)[0]
    assert not asked.questions[0].text.endswith("Answer:") and asked.info["prepended"] == ""
    assert plain.questions[0].text.endswith("Answer:") and plain.info["prepended"] == "Answer:"
    whole = render(asked, tokenizer(), chat=True), render(plain, tokenizer(), chat=True)
    texts = ["".join(map(tokenizer().decode, (p.prefix, p.questions[0]))) for p in whole]
    assert texts[0].startswith("<|im_start|>user") and texts[0].endswith("assistant\n")
    assert "<|im_start|>" not in texts[1] and total(asked, chat=True) <= 2600
    assert helmet.score(asked, asked.questions[0], asked.questions[0].references[0])["score"] == 1


def test_answers_stand_at_six_depths():
    places = [at_depth(list(range(10)), ["gold"], depth, random.Random(0)).index("gold") for depth in range(DEPTHS)]
    assert places == [0, 2, 4, 6, 8, 10]
    first, *_, last = make("kilt_triviaqa", n=DEPTHS)
    passages = [example.context.split("\n\nQuestion: ")[-1].split("\n\n")[1:] for example in (first, last)]
    assert first.questions[0].references[0] in passages[0][0] and last.questions[0].references[0] in passages[1][-1]


def test_classes_share_a_phrase_and_numbers_stand_for_labels():
    example = make("banking77", n=1)[0]
    pairs = re.findall(r"([a-z]+-[a-z]+)[^\n]*\nlabel: (\d+)", example.context)
    classes = dict(pairs)
    assert len(set(pairs)) == len(classes) == len(set(classes.values())) == 8
    phrase = re.search(r"[a-z]+-[a-z]+", example.questions[0].text)[0]
    assert example.questions[0].references == (classes[phrase],)
    counts = [sum(label == each for _, label in pairs) for each in set(classes.values())]
    assert max(counts) - min(counts) <= 1


def test_strings_belong_to_the_split():
    for split in ("eval", "train"):
        town = re.search(r"the county of (\w+)", make("msmarco_rerank_psg", split=split)[0].questions[0].text)[1]
        assert draws.split_of(town) == split


def test_a_ranking_lists_the_best_first():
    example = make("msmarco_rerank_psg", n=1)[0]
    ids, labels = example.questions[0].references[0].split(" > "), example.info["relevance"]
    assert [labels[i] for i in ids[:4]] == [3, 2, 1, 0] and set(ids) == set(labels)
    reversed_order = " > ".join(reversed(ids))
    assert 0 < helmet.score(example, example.questions[0], " > ".join(ids[1:]))["score"] < 1
    assert helmet.score(example, example.questions[0], reversed_order)["score"] < 1


def test_passages_of_a_ranking_have_identifiers_of_their_own(monkeypatch):
    monkeypatch.setattr("kvrepro.benchmarks.helmet.stand_ins.passages.IDENTIFIERS", 500)  # some are drawn twice
    example = make("msmarco_rerank_psg", n=1)[0]
    shown = re.findall(r"\[ID: (\d+)\]", example.context.split("\n\nQuery: ")[-1])
    assert len(shown) == len(set(shown)) == len(example.info["relevance"])


def test_examples_survive_the_file(tmp_path):
    made = make("msmarco_rerank_psg") + make("narrativeqa")
    write_prompts(made, tmp_path / "p.jsonl")
    assert read_prompts(tmp_path / "p.jsonl") == made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "kilt_nqq"}, ["HELMET task", "did you mean 'kilt_nq'"]),
        ({"task": "kilt_nq", "tokens": 300}, ["kilt_nq: item 0 needs at least", "raise the length"]),
        ({"task": "nlu", "n": 0}, ["at least one item"]),
    ],
    ids=str,
)
def test_bad_requests_are_one_sentence(options, words):
    with pytest.raises(InputError) as error:
        make(**options)
    assert all(word in str(error.value) for word in words)


def test_stand_ins_need_prose():
    with pytest.raises(InputError, match=r"sources\.prose"):
        helmet.generate("nlu", 1, 1024, tokenizer(), 0, offline().__class__(None, (), (), ()))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tasks": ["nluu"]}, ["benchmarks.helmet.tasks", "did you mean 'nlu'"]),
        ({"data": {"nluu": "x"}}, ["benchmarks.helmet.data", "did you mean 'nlu'"]),
        ({"sources": {}}, ["contexts of nlu", "give data or sources"]),
        ({"sources": {"prose": "kjw"}}, ["sources.prose", "did you mean 'kjv'"]),
    ],
    ids=str,
)
def test_settings_are_checked(changed, words):
    with pytest.raises(InputError) as error:
        benchmark("helmet").check(SETTINGS | changed)
    assert all(word in str(error.value) for word in words)


def test_settings_name_what_is_read():
    reads = benchmark("helmet").reads
    assert "kjv" in reads(SETTINGS) and "data" not in reads(SETTINGS)
    assert list(map(str, reads(SETTINGS | {"data": "d"}).values())) == ["d"]
    mixed = reads(SETTINGS | {"tasks": ["nlu", "banking77"], "data": {"banking77": "d"}})
    assert str(mixed["data.banking77"]) == "d" and "kjv" in mixed


def test_the_benchmark_makes_the_tasks_in_their_order():
    made = list(benchmark("helmet").generate(SETTINGS | {"tasks": ["nlu", "kilt_nq"]}, tokenizer(), 42, False, True))
    assert [(group[0].task, len(group)) for group in made] == [("nlu", 1), ("kilt_nq", 1)]
    assert made[0][0].info["split"] == "eval"
