"""Generated stand-ins of all twelve tasks: lengths, determinism, splits, and that every answer is there."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from ruler_tools import tokenizer
from scbench_tools import make, sources

from kvrepro.benchmarks import scbench
from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.prompts import read_manifest, read_prompts, write_manifest, write_prompts
from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.scbench.definitions import task as definition
from kvrepro.benchmarks.scbench.stand_ins.sources import Sources
from kvrepro.errors import InputError

UNIT = {"summary": 500, "summary_with_needles": 500, "qa_chn": 400, "qa_eng": 250, "choice_eng": 250}


def longest(example, chat=False):
    prompt = render(example, tokenizer(), chat)
    return len(prompt.prefix) + max(
        len(ids) + q.max_new_tokens for ids, q in zip(prompt.questions, example.questions, strict=True)
    )


@pytest.mark.parametrize("mode", scbench.MODES)
@pytest.mark.parametrize("task", scbench.TASKS)
def test_fills_the_length_without_exceeding_it(task, mode):
    for tokens in (3000, 5000):
        for example in make(task, tokens, n=2, mode=mode):
            assert example.info["length"] == longest(example) <= tokens
            assert longest(example) > tokens - UNIT.get(task, 200)
            assert example.benchmark == "scbench_stand_in" and example.info["stand_in"] is True
            assert {question.subtask for question in example.questions} == set(definition(task).subtasks)


@pytest.mark.parametrize("task", scbench.TASKS)
def test_items_depend_on_seed_and_number_only(task):
    first = make(task)
    assert make(task) == first and make(task, n=1) == first[:1]
    assert first[0].context != first[1].context != make(task, seed=43)[1].context
    if task != "mf":  # its answers are of the whole list
        assert [q.references for q in make(task, 4000)[0].questions] == [q.references for q in first[0].questions]


@pytest.mark.parametrize("task", scbench.TASKS)
def test_right_answers_score_and_wrong_ones_do_not(task):
    example = make(task, mode="multi_request")[0]
    texts = [t["label"] for t in example.info["turns"]]
    for question, label in zip(example.questions, texts, strict=True):
        answer = label[1] if task == "choice_eng" else " ".join(label) if isinstance(label, list) else str(label)
        assert scbench.score(example, question, answer) == 1
        assert scbench.score(example, question, "#") == 0
        if task not in ("mf", "choice_eng", "summary", "vt") and len(question.references[0]) < 100:
            assert question.references[0] in example.context
        if task == "choice_eng":
            assert label[0] in example.context and question.text.count(label[0]) == 1


def test_answers_are_what_the_contexts_say():
    vt = make("vt")[0]
    value = re.search(r"the value (\d+)", vt.questions[0].text)[1]
    chained = re.findall(r"VAR (\w+) = (\S+)", vt.context)
    assert len(chained) == 5 and f" = {value}" in vt.context
    assert {name for name, _ in chained} == set(vt.questions[0].references)

    mf = make("mf")[0]
    ordered = sorted(json.loads(mf.context))
    assert [t["label"] for t in mf.info["turns"]] == [
        ordered[-1],
        ordered[-2],
        ordered[0],
        ordered[1],
        ordered[len(ordered) // 2],
    ]

    shots = make("many_shot", mode="multi_request")[0]
    seen = dict(line.split(": ") for line in shots.context.splitlines() if ": " in line)
    assert all(seen[q.text.strip(":")] == q.references[0] for q in shots.questions)
    assert len(set(seen.values())) == 5

    kv = make("kv", mode="multi_request")[0]
    assert len(json.loads(kv.context)) == kv.info["size"]
    for question in kv.questions:
        key = re.search(r"uuid for (\S+)", question.text)[1]
        assert f"for {key} is: {question.references[0]}." in kv.context

    repo = make("repoqa", mode="multi_request")[0]
    for question, needle in zip(repo.questions, repo.info["needles"], strict=True):
        assert needle[1] == question.references[0] in repo.context
        assert re.search(r"part number (\d+)", question.text)[1] == needle[0].removeprefix("part_")

    chinese = make("qa_chn", mode="multi_request")[0]
    for question in chinese.questions:
        person = question.text.removeprefix("问题：")[:3]
        paragraph = next(line for line in chinese.context.splitlines() if person in line)
        assert question.references[0] in paragraph


def test_strings_are_of_their_split():
    for split in ("eval", "train"):
        made = scbench.generate("kv", 1, 2000, tokenizer(), 1, sources(split), most_new_tokens=60)[0]
        keys = re.findall(r"for (\S+) is: (\S+)\.", made.context)
        assert keys and all(draws.split_of(text) == split for pair in keys for text in pair)


def test_published_generation_lengths_unless_capped():
    whole = scbench.generate("repoqa", 1, 4000, tokenizer(), 1, sources())[0]
    assert [q.max_new_tokens for q in whole.questions] == [1024] * 5 and longest(whole) <= 4000
    capped = make("summary_with_needles")[0]
    assert [q.max_new_tokens for q in capped.questions] == [15, 60, 15, 60]


def test_a_chat_is_counted():
    example = make("summary", chat=True)[0]
    assert example.info["length"] == longest(example, chat=True) <= 2500
    assert [q.answer_prefix for q in example.questions] == ["", "This paper", "This paper"]


def test_bad_input():
    with pytest.raises(InputError, match=r"kv: item 0 needs at least \d+ tokens"):
        make("kv", 200)
    with pytest.raises(InputError, match="pass more of them"):
        make("repoqa", 200_000, n=1)
    with pytest.raises(InputError, match="did you mean 'repoqa'"):
        make("repoqaa")
    with pytest.raises(InputError, match="did you mean 'multi_request'"):
        make("kv", mode="multi_requests")
    with pytest.raises(InputError, match="at least one item"):
        make("kv", n=0)
    with pytest.raises(InputError, match="need words and sentences"):
        Sources((), (), ())
    with pytest.raises(InputError, match="ask for 5 documented functions, and the sources have 0"):
        scbench.generate("repoqa", 1, 3000, tokenizer(), 1, Sources(("a", "b"), ("A b.",), ()))
    with pytest.raises(InputError, match="split"):
        Sources(("a", "b"), ("A b.",), (), split="test")


def test_manifest_and_prompts(tmp_path):
    examples = [example for task in scbench.TASKS for example in make(task, n=1)]
    manifest = write_manifest(examples, tokenizer(), tmp_path / "manifest.csv")
    assert read_manifest(tmp_path / "manifest.csv").equals(manifest) and len(manifest) == 12
    write_prompts(examples, tmp_path / "prompts.jsonl")
    again = read_prompts(tmp_path / "prompts.jsonl")
    assert again == examples
    prompt = render(again[0], tokenizer())
    ids = prompt.prefix + [i for question in prompt.questions for i in question]
    digest = hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()
    assert manifest.loc[0, "token_sha256"] == digest
