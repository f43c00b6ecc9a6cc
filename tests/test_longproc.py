"""LongProc's HTML to TSV: its parser on golden answers, published files, stand-ins, and faults in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ruler_tools import offline, text_of, tokenizer

from kvrepro.benchmarks import longproc
from kvrepro.benchmarks.example import Question, render
from kvrepro.benchmarks.longproc.definitions import PROMPT, SOURCE
from kvrepro.benchmarks.longproc.definitions import task as definition
from kvrepro.benchmarks.longproc.score import normalised, table
from kvrepro.benchmarks.prompts import read_prompts, write_prompts
from kvrepro.benchmarks.registry import benchmark
from kvrepro.errors import InputError

GOLD = "name\tcity\nAnn Lee\tRome\nBob\tOslo, Norway\nCid\tN/A\nDee\t1,000\n"
TASK = "html_to_tsv_half_k"
PAGE = {
    "html_path": "webpage/a.html",
    "task_topic": "people",
    "task_description": "(1) name; (2) city",
    "gt": GOLD,
    "tsv_header": "name\tcity",
    "filtering_instruction": "",
}


def score(text: str, gold: str = GOLD) -> dict[str, float]:
    return longproc.score(None, Question("?", (gold,), 10), text)


def make(task: str = TASK, tokens: int = 2600, n: int = 2, seed: int = 42, **options):
    return longproc.generate(task, n, tokens, tokenizer(), seed, offline(), **{"most_new_tokens": 300} | options)


def write(folder: Path, pages: list, html: str = "<p>é Ann</p>", name: str = "html_to_tsv_0.5k") -> Path:
    (folder / "html_to_tsv/webpage").mkdir(parents=True, exist_ok=True)
    (folder / "html_to_tsv/webpage/a.html").write_text(html, encoding="utf-8")
    path = folder / f"html_to_tsv/{name}.json"
    path.write_text(json.dumps(pages), encoding="utf-8")
    return path


def test_the_right_table_is_right_in_any_order_and_dress():
    lines = GOLD.strip().split("\n")
    for text in (GOLD, f"```tsv\n{GOLD}```", f"Sure:\n```tsv\n{GOLD}", "\n".join([lines[0], *lines[:0:-1]])):
        assert score(text) == {"score": 1, "precision": 1, "recall": 1, "extraction_rate": 1}
    assert score(GOLD.replace("Ann Lee", "the ann  lee!").replace("1,000", "1000"))["score"] == 1


@pytest.mark.parametrize(
    ("text", "precision", "recall"),
    [
        ("name\tcity\nBob\tOslo, Norway", 1, 1 / 4),
        ("name\tcity\nBob\tOslo, Norway\nBob\tOslo, Norway\nEve\tRome", 2 / 3, 1 / 4),  # fault: twice counts twice
        ("who\twhere\nBob\tOslo, Norway", 1, 1 / 4),  # fault: headers are not compared
        ("name\tcity\nBob\tOslo, Norway\nAnn Lee", 1, 1 / 4),  # the last line is taken for an end marker
        ("name\tcity\nAnn Lee\nBob\tOslo, Norway", 1 / 2, 1 / 4),  # a broken row stays, as N/A
        ("name\tcity\nBob\tRome", 0, 0),
    ],
)
def test_rows_are_counted(text, precision, recall):
    found = score(text)
    assert found["precision"] == pytest.approx(precision) and found["recall"] == pytest.approx(recall)
    assert found["score"] == pytest.approx(2 * precision * recall / (precision + recall) if precision else 0)
    assert found["extraction_rate"] == 1


@pytest.mark.parametrize("text", ["", "```tsv\n```", "name\tcity", "name\tcity\nI cannot do that", "a\tb\tc\n1\t2\t3",
                                  "name\tname\nBob\tBob", "name city\nBob Oslo"])  # fmt: skip
def test_no_table_of_the_right_width_is_no_extraction(text):
    assert score(text) == {"score": 0, "precision": 0, "recall": 0, "extraction_rate": 0}


def test_a_row_that_is_not_applicable_is_found_in_a_broken_one():
    assert score("name\tcity\nbroken\nBob\tOslo, Norway", "name\tcity\nN/A\tN/A\n")["recall"] == 1
    assert normalised("The N/A, a  Thing") == "nathing" and table('x\ty\n"u\tv"\tw') == [("uv", "w")]


@pytest.mark.parametrize("task", longproc.TASKS)
def test_stand_ins_fill_the_length_and_hold_the_answer(task):
    for example in make(task):
        prompt, asked = render(example, tokenizer()), example.questions[0]
        total = len(prompt.prefix) + len(prompt.questions[0]) + asked.max_new_tokens
        assert example.info["length"] == total <= 2600 and total > 2500
        rows = table(asked.references[0])
        assert len(rows) == example.info["rows"] >= 4 and example.benchmark == "longproc_stand_in"
        answer = f"```tsv\n{asked.references[0]}```"
        assert len(tokenizer().encode(answer)) <= asked.max_new_tokens == 300
        assert longproc.score(example, asked, answer)["score"] == 1
        names = re.findall(r"<h2>(.*?)</h2>.*?county: (.*?)</li>", example.context)
        assert [tuple(map(normalised, pair)) for pair in names] == [row[:2] for row in rows]
        whole = PROMPT.split("{html_str}")
        assert example.instruction == whole[0] and text_of(example).endswith(whole[1].split("}}")[-1])


def test_stand_ins_depend_on_seed_and_number_only(tmp_path):
    first = make()
    assert make() == first and make(n=1) == first[:1] and make(seed=43)[0].context != first[0].context
    assert make(tokens=3600)[0].questions == first[0].questions
    write_prompts(first, tmp_path / "p.jsonl")
    assert read_prompts(tmp_path / "p.jsonl") == first


def test_published_pages_are_read(tmp_path):
    write(tmp_path, [PAGE | {"filtering_instruction": "\nOnly Ann."}, PAGE])
    first, second = longproc.load(TASK, tmp_path, tokenizer(), 4000)
    assert (first.unit, second.unit) == (0, 0)  # two questions about one page
    assert first.context == "<p>é Ann</p>" and first.benchmark == "longproc" and first.chat
    assert "(1) name; (2) city\nOnly Ann.\n\n[OUTPUT" in first.questions[0].text
    assert "```tsv\nname\tcity\n{Your TSV output}\n```" in second.questions[0].text
    assert first.questions[0].max_new_tokens == definition(TASK).max_new_tokens == 1024
    assert not first.info["truncated"] and longproc.score(first, first.questions[0], GOLD)["score"] == 1
    assert len(longproc.load(TASK, tmp_path, tokenizer(), 4000, n_items=1)) == 1


def test_a_page_that_is_too_long_loses_its_end(tmp_path):
    write(tmp_path, [PAGE], html="<p>page</p>" * 1000)
    (example,) = longproc.load(TASK, tmp_path, tokenizer(), 4000)
    assert example.info["truncated"] and 3990 < example.info["length"] <= 4000
    with pytest.raises(InputError, match=f"{TASK} item 0: .* raise the length"):
        longproc.load(TASK, tmp_path, tokenizer(), 1200)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gt": None}, ["entry 1", "'gt' is missing"]),
        ({"gt": "name\tcity"}, ["entry 1", "no table with a header and rows"]),
        ({"tsv_header": 3}, ["entry 1", "'tsv_header' must be a text"]),
        ({"html_path": "webpage/b.html"}, ["b.html", "cannot be read", "check the path"]),
        ({"filtering_instruction": None}, ["'filtering_instruction' is missing"]),
    ],
    ids=str,
)
def test_faulty_pages_are_one_sentence(changed, words, tmp_path):
    write(tmp_path, [PAGE | changed])
    with pytest.raises(InputError) as error:
        longproc.load(TASK, tmp_path, tokenizer(), 4000)
    assert all(word in str(error.value) for word in words)


def test_other_faults(tmp_path):
    with pytest.raises(InputError, match=r"html_to_tsv_0\.5k\.json: there is no such file; copy"):
        longproc.load(TASK, tmp_path, tokenizer(), 4000)
    path = write(tmp_path, [PAGE])
    (tmp_path / "html_to_tsv/webpage/a.html").write_bytes("é".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.html: is not UTF-8"):
        longproc.load(TASK, tmp_path, tokenizer(), 4000)
    for text, words in (("{", "is not JSON"), ("{}", "is no list of pages"), ("[]", "is no list of pages")):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            longproc.load(TASK, tmp_path, tokenizer(), 4000)
    for options, words in (
        ({"task": "html_to_tsv_3k"}, "LongProc task"),
        ({"most_new_tokens": 5}, "holds no row; let it be longer"),
        ({"tokens": 800}, "needs at least"),
        ({"n": 0}, "at least one item"),
    ):
        with pytest.raises(InputError, match=words):
            make(**options)


def test_settings(tmp_path):
    given = {"tasks": [TASK], "length": 2600, "sources": {"prose": "kjv", "word_count": 200}, "most_new_tokens": 200}
    found = benchmark("longproc")
    assert found.shortest(given) == 1000 and "kjv" in found.reads(given) and SOURCE["licence"] == "Apache-2.0"
    (made,) = found.generate(given | {"items": 1}, tokenizer(), 42, False, True)
    assert made[0].info["split"] == "eval"
    write(tmp_path, [PAGE])
    read = given | {"data": str(tmp_path), "length": 4000}
    (made,) = found.generate(read, tokenizer(), 42, False, False)
    assert made[0].benchmark == "longproc" and found.reads(read) == {"data": tmp_path}
    for changed, words in (
        ({"tasks": ["html_to_tsv_1k"]}, "benchmarks.longproc.tasks"),
        ({"sources": {}}, "give data or sources"),
        ({"sources": {"prose": "kjw"}}, "did you mean 'kjv'"),
    ):
        with pytest.raises(InputError, match=words):
            found.check(given | changed)
