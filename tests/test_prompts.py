"""Prompt files and manifests: what is written is what is read, and any damage is named."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace

import pytest
from ruler_tools import offline, tokenizer
from tokenizers.processors import TemplateProcessing

from kvrepro.benchmarks import prompts, ruler
from kvrepro.benchmarks.example import Example, Question, render
from kvrepro.errors import InputError


@pytest.fixture(scope="module")
def examples():
    made = [ruler.generate(task, 3, 900, tokenizer(), 42, offline()) for task in ruler.TASKS]
    return [example for task in made for example in task]


def test_round_trip(examples, tmp_path):
    odd = Example(
        "ruler", "vt", 0, 1, "a\u2028b\x85", "\r\n\t\u0000", (Question("?é\\n", ("x", "ÿ"), 3),), {"n": [1.5]}
    )
    prompts.write_prompts([*examples, odd], tmp_path / "deep" / "all.jsonl")
    assert prompts.read_prompts(tmp_path / "deep" / "all.jsonl") == [*examples, odd]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["all.jsonl"]


def test_same_examples_make_the_same_file(examples, tmp_path):
    for name in ("a", "b"):
        prompts.write_prompts(examples[:3], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_damage_is_named_by_file_and_line(examples, tmp_path):
    path = tmp_path / "niah.jsonl"
    prompts.write_prompts(examples[:3], path)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    damaged = {
        "cut in a line": (lines[0] + lines[1][: len(lines[1]) // 2], 2),
        "cut between lines": (lines[0] + lines[1], 2),
        "line lost": (lines[0] + lines[2], 2),
        "number changed": (whole.replace('"item":1', '"item":7', 1), 2),
        "not JSON": (lines[0] + "{}}\n" + lines[2], 2),
        "another object": (lines[0] + lines[1] + '{"a": 1}\n', 3),
        "not an object": ("[1]\n", 1),
        "empty": ("", 1),
        "one line too many": (whole + lines[0], 4),
    }
    for name, (text, line) in damaged.items():
        path.write_text(text)
        with pytest.raises(InputError, match=rf"niah\.jsonl, line {line}: ") as raised:
            prompts.read_prompts(path)
        assert str(raised.value).count("\n") == 0, name
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"niah\.jsonl: cannot be read"):
        prompts.read_prompts(path)
    with pytest.raises(InputError, match="cannot be read"):
        prompts.read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="no examples"):
        prompts.write_prompts([], path)


def test_failed_write_leaves_the_old_file(examples, tmp_path):
    path = tmp_path / "p.jsonl"
    prompts.write_prompts(examples[:1], path)
    before = path.read_bytes()
    broken = Example("ruler", "vt", 0, 1, "a", "b", (Question("q", ("r",), 1),), {"bad": object()})
    with pytest.raises(TypeError):
        prompts.write_prompts([examples[0], broken], path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_manifest_identifies_every_prompt(examples, tmp_path):
    manifest = prompts.write_manifest(examples, tokenizer(), tmp_path / "manifest.csv")
    assert list(manifest["task"].unique()) == list(ruler.TASKS)
    assert len(manifest) == 3 * len(ruler.TASKS) == manifest["token_sha256"].nunique()
    for row, example in zip(manifest.itertuples(), examples, strict=True):
        prompt = render(example, tokenizer())
        ids = prompt.prefix + prompt.questions[0]
        assert row.token_sha256 == hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()
        assert (row.text_sha256, row.prompt_tokens) == (prompt.text_sha256, len(ids))
        assert row.length == example.info["length"]
    read = prompts.read_manifest(tmp_path / "manifest.csv")
    assert read.equals(manifest)
    chat = prompts.write_manifest(examples[:1], tokenizer(), tmp_path / "chat.csv", chat=True)
    assert chat["token_sha256"][0] != manifest["token_sha256"][0]


def test_bad_manifest(tmp_path):
    path = tmp_path / "manifest.csv"
    for text in (
        "",
        "task,item\nvt,1\n",
        "\n\n",
        ",".join(json.dumps(c) for c in prompts.MANIFEST_COLUMNS) + "\nvt,1,2\n",
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=r"manifest\.csv: "):
            prompts.read_manifest(path)


def test_without_a_chat_the_text_begins_as_the_tokenizer_begins_texts():
    example = Example("helmet", "nlu", 0, 0, "Instruction. ", "Context.", (Question("?", ("x",), 3),), chat=False)
    begins = copy.deepcopy(tokenizer())
    begins.bos_token = "<|im_start|>"
    bos = begins.bos_token_id
    begins._tokenizer.post_processor = TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", bos)])
    plain = render(example, tokenizer()).prefix
    assert render(example, begins).prefix == [bos, *plain] == render(example, begins, chat=True).prefix
    chatty = render(replace(example, chat=True), begins, chat=True)
    assert chatty.prefix[0] == bos and chatty.prefix.count(bos) == 1 and chatty.prefix != [bos, *plain]
