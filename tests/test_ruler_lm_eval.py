"""Our prompts against those of lm-eval's RULER generators, as far as these run without a network.

Keys, values and words are random on both sides, so prompts are compared after their random parts are replaced. Each
test says, and asserts, where lm-eval 0.4.13 departs from the official scripts that both follow.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from importlib import resources

import numpy as np
import pytest
import yaml
from ruler_tools import prose, text_of, tokenizer, words
from test_ruler_score import CASES

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.ruler import aggregation, definitions
from kvrepro.benchmarks.ruler.sources import FileQuestion, FileQuestions, Prose

pytest.importorskip("lm_eval")
nltk = pytest.importorskip("nltk")  # an extra of lm-eval, as wonderwords is
pytest.importorskip("wonderwords")

LENGTH = 2048
NOISE = definitions.SENTENCES["noise"]
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.fixture(scope="module")
def theirs():
    """lm-eval's generators; importing them takes about 10 s and looks for NLTK data, which nothing here needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "find", lambda *_: True)
        from lm_eval.tasks.ruler import cwe_utils, fwe_utils, niah_utils, prepare_niah, qa_utils, vt_utils
    return {
        "niah": prepare_niah,
        "vt": vt_utils,
        "cwe": cwe_utils,
        "fwe": fwe_utils,
        "qa": qa_utils,
        "template": niah_utils.TEMPLATE,
    }


@pytest.fixture(autouse=True)
def seeded():
    """lm-eval draws from the global generators."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def ours(task, n=2, sources=None):
    sources = sources or ruler.offline(prose(), words(), split=None)
    return ruler.generate(task, n, LENGTH, tokenizer(), 1, sources)


def prompt(document) -> str:
    """A prompt as lm-eval's tasks put it together: input, a space, and the answer prefix stripped of white space."""
    return f"{document['input']} {document['gen_prefix']}"


def niah_documents(theirs, task, haystack, n=2):
    options = definitions.task(task).options
    return theirs["niah"].generate_samples(
        haystack,
        TOKENIZER=tokenizer(),
        max_seq_length=LENGTH,
        type_haystack={"noise": "repeat"}.get(options["haystack"], options["haystack"]),
        type_needle_k=options["key"],
        type_needle_v=options["value"],
        template=theirs["template"],
        num_samples=n,
        num_needle_k=options["keys"],
        num_needle_v=options["values"],
        num_needle_q=options["queries"],
    )


def bare_needles(text: str) -> str:
    """The prompt with keys and values replaced, and of equal neighbouring lines only one."""
    text = re.sub(rf"for (?:{UUID}|\S+?-\S.*?) is: (?:{UUID}|\d{{7}})\.", "for KEY is: VALUE.", text)
    text = re.sub(rf"for (?:(?:{UUID}|\S+?-\S.*?)(?:, and |, )?)+ mentioned", "for KEYS mentioned", text)
    lines = text.split("\n")
    return "\n".join(line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1])


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "niah_multikey_3"])
def test_needles_in_lines(theirs, task):
    """The same text. lm-eval finds the number of lines once, in steps of five (25 from 4,096 tokens on), ours is the
    largest for each item; and nothing keeps lm-eval's keys distinct."""
    haystack = theirs["niah"].get_haystack(
        {"noise": "repeat"}.get(definitions.task(task).options["haystack"], "needle")
    )
    for example, document in zip(ours(task), niah_documents(theirs, task, haystack), strict=True):
        mine, other = bare_needles(text_of(example)), bare_needles(prompt(document))
        if task == "niah_single_1":  # at the first line, nothing stands before the needle
            mine, other = (re.sub(rf"\n(?:{re.escape(NOISE)}\n)?One of", "\nOne of", text) for text in (mine, other))
        assert mine == other
        assert document["outputs"][0] in document["input"] and len(document["outputs"]) == 1
        assert document["length"] <= LENGTH


@pytest.mark.parametrize(
    "task", ["niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"]
)
def test_needles_in_essays(theirs, task, monkeypatch):
    """The same text around and in the needles, and the same prose from its start. lm-eval stops where the essays end
    instead of repeating them, and takes its sentences from NLTK, here replaced by ours."""
    monkeypatch.setattr(theirs["niah"], "cached_sent_tokenize", ruler.sentences)
    options = definitions.task(task).options
    source = ruler.Sources(Prose(prose(), from_start=True), (), words(), words(), split=None)
    haystack = " ".join(prose()).split(" ")
    needle = rf" ?One of the special magic \w+ for \S+ is: (?:{UUID}|\d{{7}})\."

    def around_needles(text: str, references) -> tuple[str, str]:
        before, context, after = re.fullmatch(r"(.+?\n)(.+)(\nWhat.+)", text).groups()
        assert len(re.findall(needle, context)) == options["keys"] * options["values"]
        assert len(references) == options["queries"] * options["values"]
        flat = re.sub(needle, "", context).split()
        assert flat == haystack[: len(flat)]
        return before, bare_needles(after)

    for example, document in zip(ours(task, sources=source), niah_documents(theirs, task, haystack), strict=True):
        mine = around_needles(text_of(example), example.questions[0].references)
        assert mine == around_needles(prompt(document), document["outputs"])


def chain_only(text: str) -> list[str]:
    """The words of a vt prompt without noise; names and values by their order of appearance."""
    seen: dict[str, str] = {}
    text = " ".join(text.replace(NOISE, "").split())
    return re.sub(
        r"\b(?:[A-Z]{5}|(?!VAR)[A-Z]{3}|\d{5})\b", lambda m: seen.setdefault(m[0], f"<{len(seen)}>"), text
    ).split()


def test_variable_tracking(theirs):
    """The same chain, question and example. lm-eval writes "assgined" in the answer prefix and drops its final space,
    puts a space before each line of noise and a statement on the line of the noise that follows it, gives every example
    the same value, and separates the example with four newlines. (At 512 tokens it never ends.)"""
    vt = theirs["vt"]
    shot = vt.sys_vartrack_w_noise_random(tokenizer(), num_samples=1, max_seq_length=500, incremental=5)[0]
    documents = vt.sys_vartrack_w_noise_random(tokenizer(), num_samples=2, max_seq_length=LENGTH, icl_example=shot)
    for example, document in zip(ours("vt"), documents, strict=True):
        assert prompt(document).count("assgined") == 2 and "assgined" not in text_of(example)
        assert f"\n {NOISE}\n" in document["input"] and f"\n{NOISE}\n" in example.context
        assert re.search(rf"VAR [A-Z]{{5}} = VAR [A-Z]{{5}}  {NOISE}", document["input"])
        assert "\n\n\n\nMemorize" in document["input"] and re.search(r"[A-Z]\n\nMemorize", example.instruction)
        assert chain_only(prompt(document).replace("assgined", "assigned")) == chain_only(text_of(example))
        assert document["gen_prefix"].endswith("they are:") and text_of(example).endswith("they are: ")
        assert len(document["outputs"]) == 5 and document["length"] <= LENGTH
    values = [re.search(r"assigned the value (\d+)", document["input"])[1] for document in documents]
    assert values[0] == values[1]


def word_counts(text: str) -> tuple[str, list[int]]:
    """A cwe prompt without its lists, and how often the words of its longest list appear."""
    lists = re.findall(r"(?:\d+\. .+? ?)+(?=\n|$)", text)
    counts = Counter(re.findall(r"\d+\. (.+?)(?= \d+\. |$)", max(lists, key=len)))
    return re.sub(r"\d+\. .+?(?=\n|$)", "LIST", text), sorted(counts.values())


def test_common_words(theirs):
    """The same list and question. lm-eval's task never shows the one-shot example that its generator makes: it is a
    field of its own, which the prompt does not name, and it is left out of the length. In it the answer follows the
    prefix without a space."""
    document = theirs["cwe"].sys_word_pair_random(1, LENGTH, tokenizer())[0]
    example = ours("cwe", n=1)[0]
    template = yaml.safe_load(
        "\n".join(
            line
            for line in resources.files("lm_eval.tasks.ruler").joinpath("niah_single_1.yaml").read_text().splitlines()
            if line.startswith("doc_to_text")
        )
    )
    assert template == {"doc_to_text": "{{input}}"}
    cwe_yaml = resources.files("lm_eval.tasks.ruler").joinpath("cwe.yaml").read_text()
    assert "include: niah_single_1.yaml" in cwe_yaml and "doc_to_text" not in cwe_yaml
    assert document["input"].count("Below is") == 1 and (example.instruction + example.context).count("Below is") == 2

    text, counts = word_counts(prompt(document))
    mine, my_counts = word_counts(text_of(example).split("\n", 3)[3])
    assert text == mine
    assert set(counts) == set(my_counts) == {1, 6} and counts.count(6) == my_counts.count(6) == 10
    assert "list are:1. " in document["input_example"] and "list are: 1. " in example.instruction
    assert word_counts(document["input_example"].replace("are:1.", "are: 1."))[1] == [1] * 10 + [3] * 10
    whole = len(tokenizer().encode(document["input_example"] + "\n" + prompt(document)))
    assert document["length"] < whole + 120 - 150 and example.info["length"] <= LENGTH


def test_frequent_words(theirs):
    """The same text and law. lm-eval does not count the generated tokens while it fills the length, so that the total
    can exceed it, and takes length / 50 coded words instead of (length - 50) / 50."""
    documents = theirs["fwe"].sys_kwext(tokenizer(), LENGTH, num_samples=8)
    document = documents[0]
    example = ours("fwe", n=1)[0]
    mine, other = (re.sub(r"coded words\. .+\n", "", text) for text in (text_of(example), prompt(document)))
    assert mine == other
    for text, references, ranks in (
        (document["input"], document["outputs"], LENGTH // 50),
        (text_of(example), example.questions[0].references, (LENGTH - 50) // 50),
    ):
        counts = Counter(re.search(r"coded words\. (.+)\nQuestion", text)[1].split())
        ranked = counts.most_common()
        assert ranked[0][0] == "..." and [word for word, _ in ranked[1:4]] == list(references)
        sizes = [size for _, size in ranked]
        law = [aggregation.zipf_counts(n, ranks, 2.0) for n in range(1, 4000)]
        assert sizes in [[size for size in row if size] for row in law]
    assert max(document["length"] for document in documents) > LENGTH >= example.info["length"]


def test_question_answering(theirs):
    """The same documents, question and template. lm-eval never repeats documents, and shuffles those of every item by
    the same permutation."""
    texts = tuple(" ".join(prose()[5 * n : 5 * n + 5]) for n in range(60))
    read = FileQuestions(
        "squad.json",
        tuple(FileQuestion(f"Which {n}?", (f"a{n}", f"b{n}"), (n,), (n + 1, n + 2)) for n in range(2)),
        texts,
    )
    asked = [
        {"query": q.question, "outputs": list(q.references), "context": list(q.golden), "more_context": list(q.near)}
        for q in read.questions
    ]
    documents = theirs["qa"].generate_samples(tokenizer(), list(texts), asked, LENGTH, num_samples=2)
    source = ruler.Sources(None, (), (), (), {"squad": read}, split=None)
    for n, (example, document) in enumerate(zip(ours("qa_1", sources=source), documents, strict=True)):
        assert list(example.questions[0].references) == document["outputs"]
        parts = []
        for text in (text_of(example), prompt(document)):
            before, context, after = re.fullmatch(
                r"(.+?documents\.\n\n)(Document 1:.+?)(\n\nAnswer.+)", text, re.S
            ).groups()
            shown = re.split(r"(?:\n\n|^)Document \d+:\n", context)[1:]
            assert set(shown) <= set(texts) and {texts[n], texts[n + 1], texts[n + 2]} <= set(shown)
            parts.append((before, after))
        assert parts[0] == parts[1]
        assert document["length"] <= LENGTH


def test_lm_eval_scores_differ_only_in_question_answering():
    """lm-eval's string_match_part gives the share of aliases found, the official one 1 when any is found."""
    from lm_eval.tasks.ruler import common_utils as scorers

    for task, prediction, references, expected in CASES:
        document = {"max_length": 4096, "outputs": references}
        if not task.startswith("qa"):
            assert scorers.process_results(document, [prediction])["4096"] == pytest.approx(expected)
            continue
        found = sum(reference.lower() in prediction.lower() for reference in references)
        assert scorers.process_results_part(document, [prediction])["4096"] == pytest.approx(found / len(references))
    assert ruler.score("qa_1", "the year was 1066", ["1066", "in 1066", "AD 1066"]) == 1.0
    document = {"max_length": 4096, "outputs": ["1066", "in 1066", "AD 1066"]}
    assert scorers.process_results_part(document, ["the year was 1066"])["4096"] == pytest.approx(1 / 3)
