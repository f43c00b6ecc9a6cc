"""Published SCBench files: their format, both modes of asking, middle truncation, and what is wrong with a bad file."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from ruler_tools import tokenizer
from scbench_tools import CHOICE, CODE, FUNCTION, ROWS, real, write

from kvrepro.benchmarks import scbench
from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.prompts import read_prompts, write_prompts
from kvrepro.benchmarks.scbench.definitions import SOURCE, task
from kvrepro.benchmarks.scbench.truncate import middle
from kvrepro.errors import InputError

#: eval_utils.py: DATA_NAME_TO_MAX_NEW_TOKENS
NEW_TOKENS = {
    "choice_eng": 40,
    "qa_eng": 40,
    "qa_chn": 40,
    "kv": 150,
    "mf": 5,
    "prefix_suffix": 150,
    "repoqa": 1024,
    "summary": 200,
    "vt": 30,
    "many_shot": 10,
    "summary_with_needles": {"summary": 800, "passkey": 15},
    "repoqa_and_kv": {"repoqa": 1024, "kv": 80},
}


def test_the_definitions_are_those_published():
    assert set(scbench.TASKS) == set(NEW_TOKENS) and len(scbench.TASKS) == 12
    for name, tokens in NEW_TOKENS.items():
        expected = tokens if isinstance(tokens, dict) else {name: tokens}
        assert {sub.name: sub.max_new_tokens for sub in task(name).subtasks.values()} == expected
    assert task("scbench_kv") is task("kv") or task("scbench_kv") == task("kv")
    assert SOURCE["licence"] == "MIT" and len(SOURCE["commit"]) == 40
    with pytest.raises(InputError, match="did you mean 'qa_chn'"):
        task("qa_chin")


def prompts(folder, name, row=None, **options):
    example = real(folder, name, row, **options)[0]
    return example.instruction, example.context, [q.text for q in example.questions]


def test_multi_turn_prompts_are_the_published_ones(tmp_path):
    assert prompts(tmp_path, "kv") == (
        "Extract the value corresponding to the specified key in the JSON object below.\n\n",
        '{"k1": "v1"}',
        ["\n\nk1?", "\n\nk1?v1\n\nk2?"],
    )
    options = "\nA. Bob\nB. Ann\nC. Cid\nD. Dee\n\n"
    first = f"\n\nQuestion: Who?{options}The the correct answer is"
    assert prompts(tmp_path, "choice_eng") == (
        "Read the book and answer the question.\n\n",
        "A book.",
        [first, f"{first}Ann\n\nQuestion: Who?{options}The letter of the correct answer is"],
    )
    start = "\n\nThe largest number of the list is"
    assert prompts(tmp_path, "mf") == (
        "What is the largest number of the list?\n\n",
        "[3, 1, 2]",
        [start, f"{start}3\n\nWhat is the smallest number of the list?\n\nThe smallest number of the list is"],
    )
    assert prompts(tmp_path, "qa_chn") == ("阅读以下书籍然后回答问题。\n\n", "一本书。", ["\n\n问题：谁？\n答案："])
    assert prompts(tmp_path, "qa_eng")[2] == ["\n\nQuestion: Who {x}?\nAnswer:"]  # braces of a text stay
    assert prompts(tmp_path, "vt") == ("", "VAR A = 1", ["\n\n1?"])  # its context is called input


def test_multi_request_prompts_are_the_published_ones(tmp_path):
    def ask(name):
        return prompts(tmp_path, name, mode="multi_request")

    assert ask("kv")[2] == ["k1?", "k2?"]
    assert ask("choice_eng")[2][1].endswith("D. Dee\n\nThe the correct answer is")
    instruction, _, questions = ask("mf")
    assert instruction == "The largest number of the list is\n\n"
    assert questions[1] == "What is the smallest number of the list?\n\nThe smallest number of the list is"
    assert ask("qa_chn")[2] == ["问题：谁？\n答案："]


def test_a_chat_wraps_every_turn(tmp_path):
    example = real(tmp_path, "summary", chat=True)[0]
    prompt = render(example, tokenizer(), chat=True)
    whole = tokenizer().decode(prompt.prefix + prompt.questions[1])
    assert whole == (
        "<|im_start|>user\nText.\n\nSum up.<|im_end|>\n<|im_start|>assistant\ns1<|im_end|>\n"
        "<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\nThis paper"
    )
    single = real(tmp_path, "summary", chat=True, mode="multi_request")[0]
    prompt = render(single, tokenizer(), chat=True)
    assert tokenizer().decode(prompt.questions[1]) == "Again.<|im_end|>\n<|im_start|>assistant\n"


def test_what_scorers_get(tmp_path):
    assert real(tmp_path, "choice_eng")[0].info["turns"][1]["label"] == ["Dee", "D"]
    assert real(tmp_path, "qa_eng")[0].info["turns"][0]["label"] == ["Ann"]
    assert real(tmp_path, "qa_chn")[0].info["turns"][0]["label"] == "王安"  # one text, as published
    assert real(tmp_path, "mf")[0].info["turns"][0]["label"] == 3
    write(tmp_path, "repoqa", ROWS["repoqa"], ROWS["repoqa"] | {"multi_turns": [FUNCTION | {"name": "other"}]})
    for example in scbench.load("repoqa", tmp_path, tokenizer(), 3000):
        assert example.info["needles"] == [["add", CODE], ["other", CODE]]  # of all contexts of the repository
    mixed = real(tmp_path, "repoqa_and_kv")[0]
    assert [q.max_new_tokens for q in mixed.questions] == [1024, 80]
    assert mixed.benchmark == "scbench" and mixed.info["stand_in"] is False


def test_files_of_every_layout(tmp_path):
    write(tmp_path, "kv", ROWS["kv"], ROWS["kv"])
    folder = tmp_path / "hub" / "scbench_kv"
    folder.mkdir(parents=True)
    pd.DataFrame([ROWS["kv"]] * 2).to_parquet(folder / "test-00000-of-00001.parquet")
    lines = scbench.load("kv", tmp_path, tokenizer(), 1000)
    assert scbench.load("scbench_kv", tmp_path / "hub", tokenizer(), 1000) == lines
    assert scbench.load("kv", tmp_path / "scbench_kv.jsonl", tokenizer(), 1000, n_items=1) == lines[:1]
    one = scbench.load("kv", tmp_path, tokenizer(), 1000, max_turns=1)
    assert [len(example.questions) for example in one] == [1, 1]
    write_prompts(lines, tmp_path / "prompts.jsonl")
    assert read_prompts(tmp_path / "prompts.jsonl") == lines


def test_a_parquet_file_of_mixed_turns_has_no_empty_fields(tmp_path):
    turns = [FUNCTION | {"task": "scbench_repoqa"}, {"task": "scbench_kv", "input": "k?", "answer": "v", "name": None}]
    folder = tmp_path / "scbench_repoqa_and_kv"
    folder.mkdir()
    pd.DataFrame([ROWS["repoqa_and_kv"] | {"multi_turns": turns}]).to_parquet(folder / "a.parquet")
    assert scbench.load("repoqa_and_kv", tmp_path, tokenizer(), 4000)[0].info["turns"][1]["name"] == ""


def changed(name, /, **fields):
    return {key: value for key, value in (ROWS[name] | fields).items() if value is not None}


def turn(name, number=0, /, **fields):
    turns = [dict(one) for one in ROWS[name]["multi_turns"]]
    turns[number] = {key: value for key, value in (turns[number] | fields).items() if value is not None}
    return changed(name, multi_turns=turns)


BAD = [
    ("kv", [1], r"line 1 is not a JSON object but a list"),
    ("kv", changed("kv", context=None), r"field 'context' is missing"),
    ("kv", changed("kv", context=7), r"field 'context' must be a text, got a number \(7\)"),
    ("kv", changed("kv", multi_turns="[]"), r"field 'multi_turns' must be a list of turns, got a text"),
    ("kv", changed("kv", multi_turns=[]), r"'multi_turns' is empty"),
    ("kv", turn("kv", 1, answer=None), r"line 1, turn 2: field 'answer' is missing"),
    ("kv", turn("kv", answer=5), r"field 'answer' must be a text, got a number"),
    ("kv", turn("kv", answer=" "), r"field 'answer' is empty"),
    ("qa_eng", turn("qa_eng", answer=["Ann"]), r"field 'answer' must be a text, got a list"),
    ("qa_eng", turn("qa_eng", answer="['Ann', 'Bo']"), r"a list written as a string"),
    ("qa_chn", turn("qa_chn", answer='["王安"]'), r"a list written as a string"),
    ("qa_chn", turn("qa_chn", answer=[]), r"must be a list of texts"),
    ("vt", turn("vt", answer="A, B"), r"field 'answer' must be a list of texts, got a text"),
    ("vt", turn("vt", answer=["A", 3]), r"must be a list of texts"),
    ("mf", changed("mf", context="1, 2"), r"'context' must be a list of numbers, got a text"),
    ("mf", changed("mf", context=[1, "2"]), r"must be a list of numbers"),
    ("mf", turn("mf", answer="3"), r"field 'answer' must be a number, got a text"),
    ("mf", turn("mf", answer=True), r"must be a number, got true or false"),
    ("mf", turn("mf", input="Largest?"), r"must say \"The ... is\""),
    ("choice_eng", turn("choice_eng", options=None), r"field 'options' is missing"),
    ("choice_eng", turn("choice_eng", options=["a", "b"]), r"must hold 4 texts, got 2"),
    ("choice_eng", turn("choice_eng", answer="Eve"), r"is none of the options"),
    ("repoqa", changed("repoqa", repo=None), r"field 'repo' is missing"),
    ("repoqa", changed("repoqa", lang="perl"), r"language 'perl' is unknown"),
    ("repoqa", turn("repoqa", name=None), r"field 'name' is missing"),
    ("repoqa_and_kv", turn("repoqa_and_kv", task=None), r"field 'task' is missing"),
    ("repoqa_and_kv", turn("repoqa_and_kv", task="scbench_vt"), r"sub-task 'vt' is unknown"),
]


@pytest.mark.parametrize(("name", "row", "message"), BAD)
def test_a_bad_row_is_one_sentence(name, row, message, tmp_path):
    with pytest.raises(InputError, match=message) as raised:
        real(tmp_path, name, row)
    assert f"scbench_{name}.jsonl" in str(raised.value) and "\n" not in str(raised.value)


def test_bad_files_are_one_sentence(tmp_path):
    def fails(message):
        with pytest.raises(InputError, match=message):
            scbench.load("kv", tmp_path, tokenizer(), 1000)

    fails("holds neither scbench_kv.jsonl")
    path = tmp_path / "scbench_kv.jsonl"
    path.write_bytes(json.dumps(changed("kv", context="größer"), ensure_ascii=False).encode("latin-1"))
    fails(r"is not UTF-8 \(byte \d+\)")
    path.write_text(json.dumps(ROWS["kv"]) + '\n{"context": ')
    fails("line 2: is not JSON")
    path.write_text("\n")
    fails("holds no row")
    path.unlink()
    (tmp_path / "scbench_kv").mkdir()
    (tmp_path / "scbench_kv" / "a.parquet").write_bytes(b"no")
    fails("is not a readable Parquet file")
    with pytest.raises(InputError, match="did you mean 'multi_turn'"):
        real(tmp_path, "kv", mode="multiturn")


BOOK = " ".join(f"word{number}" for number in range(3000))


@pytest.mark.parametrize("mode", scbench.MODES)
@pytest.mark.parametrize("name", ["kv", "summary_with_needles"])
def test_middle_truncation_keeps_both_ends_within_the_limit(name, mode, tmp_path):
    limit = 5000
    example = real(tmp_path, name, changed(name, context=BOOK), limit=limit, mode=mode)[0]
    prompt = render(example, tokenizer())
    assert example.context.startswith("word0 word1 ") and example.context.endswith(" word2998 word2999")
    assert example.info["truncated"] and example.info["context_tokens"] == len(tokenizer().encode(BOOK))
    reserved = {"kv": 150 * 2, "summary_with_needles": (800 + 15) * 2 // 2}[name]
    reserved += {"multi_turn": len(prompt.questions[0]), "multi_request": 1000}[mode]
    kept = len(prompt.prefix)
    assert limit - reserved - 3 <= kept <= limit - reserved
    assert example.info["length"] <= limit
    head, tail = example.context.split("word0 ")[1], example.context
    assert abs(len(tail) // 2 - tail.find(BOOK[-200:-100])) < len(head)  # the end is kept whole
    cut = max(i for i in range(len(example.context)) if BOOK.startswith(example.context[:i]))
    assert abs(len(tokenizer().encode(example.context[:cut])) - kept / 2) < 60  # as much before the cut as after it


def test_truncation_alone():
    text = "一本很长的书。" * 200
    for room in (1, 2, 7, 100):
        cut, before = middle(text, tokenizer(), room, room // 2)
        assert before == len(tokenizer().encode(text)) and len(tokenizer().encode(cut)) <= room
        assert "�" not in cut
    assert middle("short", tokenizer(), 100, 50)[0] == "short"
    with pytest.raises(InputError, match="raise it"):
        middle(text, tokenizer(), 0, 0)
    with pytest.raises(InputError, match="fast version"):
        middle(text, object(), 5, 2)


def test_a_limit_without_room_names_the_item(tmp_path):
    with pytest.raises(InputError, match=r"choice_eng item 0: .*raise it"):
        real(tmp_path, "choice_eng", changed("choice_eng", multi_turns=[CHOICE] * 40), limit=1000)
