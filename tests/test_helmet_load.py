"""HELMET's published files: what is read, which questions and demonstrations are taken, and faults in one sentence."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from helmet_tools import book, case, question, ranked, story, write
from ruler_tools import text_of, tokenizer

from kvrepro.benchmarks import helmet
from kvrepro.benchmarks.helmet import icl
from kvrepro.benchmarks.helmet.build import OMITTED, cut
from kvrepro.benchmarks.helmet.definitions import task as definition
from kvrepro.benchmarks.helmet.rows import Labelled
from kvrepro.benchmarks.registry import benchmark
from kvrepro.errors import InputError

LIMIT = 8192
module = import_module("kvrepro.benchmarks.helmet.load")


@pytest.fixture
def short_documents(monkeypatch):
    """Documents of 40 tokens are long enough, and cut to 120."""
    monkeypatch.setattr(
        module, "definition", lambda name: replace(definition(name), shortest=40, reserved=LIMIT - 120, items=3)
    )


def load(task: str, folder: Path, limit: int = LIMIT, **options):
    return helmet.load(task, folder, tokenizer(), limit, **options)


def test_shuffles_and_splits_are_those_of_datasets():
    datasets = pytest.importorskip("datasets")
    rows = [{"text": str(i), "label": i % 68} for i in range(57)]
    made = datasets.Dataset.from_list(rows)
    for seed in (0, 42, 2**31 - 1):
        assert module.shuffled(rows, seed) == list(made.shuffle(seed=seed))
    divided = made.train_test_split(test_size=0.1, seed=42)
    mixed = module.shuffled(rows, 42)
    assert list(divided["test"]) == mixed[:6] and list(divided["train"]) == mixed[6:]


def test_questions_come_with_their_depths_and_two_demonstrations(tmp_path):
    write(tmp_path, "kilt/nq-dev-multikilt_1000_k50_dep6", [question(n, d) for d in (0, 3) for n in range(7)])
    write(tmp_path, "kilt/nq-train-multikilt_1000_k3_dep6", [question(n, d) for d in (0, 1) for n in range(20, 25)])
    made = load("kilt_nq", tmp_path, n_items=3)
    taken = random.Random(42).sample(sorted(f"What is in {n}?" for n in range(7)), 3)
    asked = [re.search(r"What is in (\d)\?\nAnswer:$", text_of(e))[0].split("\n")[0] for e in made]
    assert Counter(asked) == dict.fromkeys(taken, 2) and [e.item for e in made] == list(range(6))
    for example in made:
        shown = re.findall(r"Question: What is in (2\d)\?\nAnswer: A(2\d)\n\n", example.context)
        assert len(shown) == len(set(shown)) == 2 and all(a == b for a, b in shown)
        assert example.context.count("Document (Title: ") == 3 * 6 and example.benchmark == "helmet"
        assert example.info["stand_in"] is False and not example.info["truncated"]
    same = [e.context[: e.context.index(f"Thing{n}")] for e, n in zip(made, (a[11] for a in asked), strict=True)]
    assert len(set(same)) == 3  # a question has the same demonstrations at all depths
    assert [e.unit for e in made] == [asked.index(question) for question in asked]  # a question's depths are one
    assert load("kilt_nq", tmp_path, n_items=3) == made and len(load("kilt_nq", tmp_path)) == 14


def test_popular_subjects_are_left_out_of_popqa(tmp_path):
    rows = [question(n, id=n, s_pop=10 ** (n % 5)) for n in range(15)]
    for name in ("kilt/popqa_test_1000_k50_dep6", "kilt/popqa_test_1000_k3_dep6"):
        write(tmp_path, name, rows)
    made = load("kilt_popqa_3", tmp_path)
    assert len(made) == 9  # powers 0, 1 and 2
    for example in made:
        numbers = [int(n) for n in re.findall(r"What is in (\d+)\?", text_of(example))]
        assert len(set(numbers)) == 3 and all(n % 5 < 3 for n in numbers)


def test_reranking_asks_for_the_labels_and_shows_other_queries(tmp_path):
    write(tmp_path, "msmarco/test_reranking_data_k50_dep3", [ranked(n) for n in range(3)])
    write(tmp_path, "msmarco/test_reranking_data_k10_dep3", [ranked(n) for n in range(4)])
    for example in load("msmarco_rerank_psg", tmp_path):
        queries = re.findall(r"Query: things of (\d)", text_of(example))
        assert len(set(queries)) == 3
        number = int(queries[-1])
        assert example.questions[0].references == (" > ".join(str(10 * number + i) for i in (3, 2, 1, 5, 0, 4)),)
        assert example.info["relevance"][str(10 * number + 3)] == 3
        assert f"[ID: {10 * number}] Document: Text 0 of {number}." in example.context


def test_documents_are_cut_and_short_ones_left_out(tmp_path, short_documents):
    rows = [story(n, 200 if n % 2 else 5) for n in range(12)]
    write(tmp_path, "narrativeqa/test", rows)
    (tmp_path / "narrativeqa/train").mkdir()
    pd.DataFrame([story(n, 5) for n in range(20, 26)]).to_parquet(tmp_path / "narrativeqa/train-00000-of-00001.parquet")
    made = load("narrativeqa", tmp_path)
    assert len(made) == 3 and [e.unit for e in made] == [0, 1, 2]
    for example in made:
        number = re.search(r"Who (\d+)\?\nAnswer:$", text_of(example))[1]
        assert int(number) % 2 and example.context.endswith(OMITTED) and example.questions[0].max_new_tokens == 100
        assert len(set(re.findall(r"Question: Who (2\d)\?\nAnswer: Ann 2\d", example.context))) == 2
        assert f"story{number}" in example.context and "story2" not in example.context


def test_questions_about_one_book_are_one_unit(tmp_path, short_documents):
    books = [book(n, 200) for n in range(2)]
    rows = [books[n % 2] | {"id": n, "input": "Who?" if n < 2 else f"Who {n}?"} for n in range(6)]
    write(tmp_path, "infinitebench/longbook_qa_eng", rows)
    made = load("infbench_qa_eng", tmp_path, n_items=6)
    first = [re.search(r"book\d", e.context)[0] for e in made]
    assert [e.unit for e in made] == [first.index(name) for name in first] and len(set(first)) == 2


@pytest.mark.parametrize("task", ["infbench_qa_eng", "infbench_choice_eng", "infbench_sum_eng"])
def test_books(task, tmp_path, short_documents):
    options = ["Bob", "Ann", "Cid", "Dee"]
    more = {"options": options, "answer": ["Ann"]} if task == "infbench_choice_eng" else {}
    rows = [book(n, 200, **more) for n in range(5)]
    write(tmp_path, f"infinitebench/{definition(task).files['test'].split('/')[1]}", rows)
    first, *_ = made = load(task, tmp_path)
    assert len(made) == 3 and text_of(first).endswith(f"\n\n{definition(task).answer_prefix}")
    assert first.context.count("[story text]") == 2 and OMITTED in first.context
    expected = {"infbench_choice_eng": ("B", "B. Ann")}.get(task)
    assert expected is None or first.questions[0].references == expected
    if task == "infbench_choice_eng":
        assert (
            "Options:\nA. Bob\nB. Ann\nC. Cid\nD. Dee" in first.questions[0].text and "\nAnswer: B\n" in first.context
        )
    scored = helmet.score(first, first.questions[0], first.questions[0].references[0])["score"]
    assert scored == (0.8 if task == "infbench_sum_eng" else 1)  # the script does not look for "Summary:" here


def test_cases_without_a_short_summary_are_left_out(tmp_path, short_documents):
    write(
        tmp_path, "multi_lexsum/validation", [case(n, 100) | {"summary/short": None} for n in range(3)] + [case(7, 90)]
    )
    write(tmp_path, "multi_lexsum/train", [case(n, 10) for n in range(10, 14)])
    (example,) = load("multi_lexsum", tmp_path)
    assert example.questions[0].references == ("Case 7 was settled.",)
    assert len(re.findall(r"Summary: Case 1\d was settled\.", example.context)) == 2
    assert "following legal documents.\nLegal documents:\ncase7" in example.context


def test_demonstrations_are_balanced():
    texts = [Labelled(f"{label} {i}", label) for label in range(4) for i in range(3 + label)]
    drawn = icl.balanced(texts, 10, 7)
    assert drawn == icl.balanced(texts, 10, 7) != icl.balanced(texts, 10, 8)
    for start in (0, 4):  # whole rounds, each with every class
        assert sorted(text.label for text in drawn[start : start + 4]) == [0, 1, 2, 3]
    assert len(set(drawn)) == 10
    many = Counter(text.label for text in icl.balanced(texts, 40, 7))
    assert set(many.values()) == {10}  # drawn again where a class has too few


def test_labels_become_numbers_of_the_questions_own(tmp_path):
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(300)], "fine_label": [i % 50 for i in range(300)]})
    (tmp_path / "trec").mkdir()
    frame.to_parquet(tmp_path / "trec/train.parquet")
    frame[:100].assign(text=[f"asked {i}" for i in range(100)]).to_csv(tmp_path / "trec/test.csv", index=False)
    made = load("trec_fine", tmp_path, n_items=60)
    assert len(made) == 60
    asked = [int(re.search(r"asked (\d+)\nlabel:$", text_of(e))[1]) % 50 for e in made]
    assert min(Counter(asked).values()) == 1 and len(set(asked)) == 50  # balanced as well
    for example, label in list(zip(made, asked, strict=True))[:5]:
        shown = re.findall(r"text (\d+)\nlabel: (\d+)", example.context)
        numbers = {int(text) % 50: number for text, number in shown}
        assert len(shown) == 400 and len(set(numbers.values())) == 50
        assert example.questions[0].references == (numbers[label],)
    assert made[0].context.split("label: ")[1][:2] != made[1].context.split("label: ")[1][:2]


def test_as_many_demonstrations_as_fit_where_no_number_is_published(tmp_path):
    pairs = [[f"say {word} {i}", word] for i in range(30) for word in ("a", "b", "c")]
    content = {
        "train": pairs,
        "oos_train": [["what", "oos"]],
        "val": pairs[:3],
        "oos_val": [["who", "oos"]],
        "test": [],
    }
    (tmp_path / "clinic150").mkdir()
    (tmp_path / "clinic150/data_full.json").write_text(json.dumps(content))
    made = load("clinic150", tmp_path, limit=600)
    assert len(made) == 4 and {e.questions[0].text.split("\n")[2] for e in made} == {
        "say a 0",
        "say b 0",
        "say c 0",
        "who",
    }
    for example in made:
        assert 560 < example.info["length"] <= 600 and not example.info["truncated"]
        assert example.context.count("\nlabel: ") > 15


def test_one_split_of_nlu_is_divided(tmp_path):
    write(tmp_path, "nlu/train", [{"text": f"text {i}", "label": i % 68} for i in range(340)])
    made = load("nlu", tmp_path)
    assert len(made) == 34
    asked = {e.questions[0].text.split("\n")[2] for e in made}
    shown = set(re.findall(r"text \d+(?=\nlabel: )", " ".join(e.context for e in made)))
    assert len(asked) == 34 and not asked & shown


def test_a_context_that_is_too_long_loses_its_end(tmp_path):
    write(tmp_path, "nlu/train", [{"text": f"text {'long ' * 60}{i}", "label": i % 68} for i in range(340)])
    example = load("nlu", tmp_path, n_items=1)[0]
    assert example.info["truncated"] and LIMIT - 5 < example.info["length"] <= LIMIT


def test_a_cut_document_says_so():
    text, tokens = cut("word " * 50, tokenizer(), 30)
    assert text.endswith(OMITTED) and tokens >= 50 and len(tokenizer().encode(text)) <= 31
    assert cut("word", tokenizer(), 30) == ("word", len(tokenizer().encode("word")))
    with pytest.raises(InputError, match="raise the length"):
        cut("word " * 50, tokenizer(), 5)


RAG = "kilt/nq-dev-multikilt_1000_k50_dep6"
BAD = {
    "missing file": ("kilt_nq", {}, ["there is no such file", "config/README.md"]),
    "missing field": ("kilt_nq", {RAG: [{"question": "?", "answers": ["a"]}]}, ["line 1", "'ctxs' is missing"]),
    "no passage": ("kilt_nq", {RAG: [question(1) | {"ctxs": []}]}, ["line 1", "'ctxs' is empty"]),
    "passage without text": ("kilt_nq", {RAG: [question(1) | {"ctxs": [{"title": "t"}]}]}, ["passage 1", "'text'"]),
    "answer no list": ("kilt_nq", {RAG: [question(1) | {"answers": "a"}]}, ["'answers' must be a list", "a text"]),
    "never looked up": (
        "kilt_popqa_3",
        {"kilt/popqa_test_1000_k50_dep6": [question(1, id=1, s_pop=0)]},
        ["'s_pop' must be above 0, got 0"],
    ),
    "no demonstrations": (
        "kilt_nq",
        {RAG: [question(1)], "kilt/nq-train-multikilt_1000_k3_dep6": [question(2)]},
        ["too few questions for the 2 demonstrations of kilt_nq"],
    ),
    "twice": (
        "msmarco_rerank_psg",
        {"msmarco/test_reranking_data_k50_dep3": [ranked(0) | {"ctxs": ranked(0)["ctxs"] * 2}]},
        ["passage 7", "'0' stands twice"],
    ),
    "nothing relevant": (
        "msmarco_rerank_psg",
        {"msmarco/test_reranking_data_k50_dep3": [ranked(0, 1)]},
        ["no passage has a label above 0"],
    ),
    "options": (
        "infbench_choice_eng",
        {"infinitebench/longbook_choice_eng": [book(1, 3, options=["Ann", "Bob"])]},
        ["'options' must hold 4 texts, got 2"],
    ),
    "other answer": (
        "infbench_choice_eng",
        {"infinitebench/longbook_choice_eng": [book(1, 3, options=["a", "b", "c", "d"])]},
        ["'Ann 1' is none of the options"],
    ),
    "empty story": ("narrativeqa", {"narrativeqa/test": [story(1, 0)]}, ["document: field 'text' is empty"]),
    "case no object": ("multi_lexsum", {"multi_lexsum/validation": [[1]]}, ["line 1 is not a JSON object but a list"]),
    "class": ("trec_fine", {"trec/test": [{"text": "t", "fine_label": 50}]}, ["below 50", "trec_fine", "got 50"]),
    "pair": ("clinic150", {"clinic150/validation": [["only"]]}, ["must be a pair of a text and a label"]),
}


@pytest.mark.parametrize("case", BAD)
def test_faulty_files_are_one_sentence(case, tmp_path):
    task, files, words = BAD[case]
    for name, rows in files.items():
        write(tmp_path, name, rows)
    with pytest.raises(InputError) as error:
        load(task, tmp_path)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_other_faults(tmp_path):
    path = write(tmp_path, RAG, [question(1)])
    with pytest.raises(InputError, match="published for 4096 tokens; set the length to one of 8192"):
        load("kilt_nq", tmp_path, limit=4096)
    path.write_bytes('{"question": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8"):
        load("kilt_nq", tmp_path)
    path.write_text('{"question": ')
    with pytest.raises(InputError, match=r"line 1: is not JSON"):
        load("kilt_nq", tmp_path)
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no row"):
        load("kilt_nq", tmp_path)
    (tmp_path / "clinic150").mkdir()
    (tmp_path / "clinic150/data_full.json").write_text("{}")
    with pytest.raises(InputError, match="the list 'val' is missing or empty"):
        load("clinic150", tmp_path)
    shutil.rmtree(tmp_path / "clinic150")
    (tmp_path / "clinic150").mkdir()
    content = {"train": [["t", str(i)] for i in range(151)], "oos_train": [["u", "oos"]]}
    content |= {"val": content["train"][:2], "oos_val": content["oos_train"]}
    (tmp_path / "clinic150/data_full.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="has 151 classes, and these files more"):
        load("clinic150", tmp_path)


DOWNLOADED = Path("data/HELMET")


@pytest.mark.parametrize(("task", "texts"), [("banking77", 3080), ("clinic150", 3100)])
def test_the_real_files(task, texts):
    """Where ``snakemake helmet_data`` has fetched them."""
    if not (DOWNLOADED / task).exists():
        pytest.skip("not downloaded")
    test, train = module._texts(definition(task), DOWNLOADED, 42)
    assert len(test) == texts and len({text.label for text in train}) == definition(task).classes
    made = load(task, DOWNLOADED, limit=2048, n_items=definition(task).classes)
    assert all(1900 < e.info["length"] <= 2048 for e in made)
    assert len({e.questions[0].text for e in made}) == len(made)


def test_fetched_files_take_the_place_of_stand_ins_where_they_are(tmp_path):
    settings = {"length": 1024, "tasks": ["kilt_nq", "banking77"], "sources": {"prose": "kjv", "word_count": 50}}
    settings["fetched"] = str(tmp_path)
    asked = benchmark("helmet")
    assert "data.banking77" not in asked.reads(settings)
    (tmp_path / "banking77").mkdir()
    (tmp_path / "banking77/train.csv").write_text("text,category\n")
    assert "data.banking77" not in asked.reads(settings), "half of them is nothing"
    (tmp_path / "banking77/test.csv").write_text("text,category\n")
    assert asked.reads(settings)["data.banking77"] == tmp_path and "data.kilt_nq" not in asked.reads(settings)
    (tmp_path / "clinic150").mkdir()
    (tmp_path / "clinic150/data_full.json").write_text("{}")
    assert "data.clinic150" in asked.reads(settings | {"tasks": ["kilt_nq", "clinic150"]})
