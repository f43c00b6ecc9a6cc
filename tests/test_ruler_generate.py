"""RULER generators: definitions, lengths, determinism, splits, and that every answer is where it should be."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter

import pytest
from ruler_tools import offline, prose, text_of, tokenizer, words

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.fit import largest_fitting
from kvrepro.benchmarks.ruler import aggregation, definitions, draws, facts, niah
from kvrepro.benchmarks.ruler.problem import scatter
from kvrepro.benchmarks.ruler.sources import Prose
from kvrepro.errors import InputError

GENERATED_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}  # RULER's constants.py


def make(task, length=1024, n=2, seed=42, split="eval", chat=False):
    return ruler.generate(task, n, length, tokenizer(), seed, offline(split), chat=chat)


def total(example, chat=False) -> int:
    prompt = render(example, tokenizer(), chat)
    return len(prompt.prefix) + len(prompt.questions[0]) + example.questions[0].max_new_tokens


@pytest.mark.parametrize("task", ruler.TASKS)
@pytest.mark.parametrize("length", [1024, 4096])
def test_fills_the_length_without_exceeding_it(task, length):
    for example in make(task, length):
        assert example.info["length"] == total(example) <= length
        unit = 130 if task.startswith(("qa", "niah_multikey_3")) else 60  # tokens of the largest unit of haystack
        assert total(example) > length - unit
        assert example.questions[0].max_new_tokens == GENERATED_TOKENS[definitions.task(task).family]


@pytest.mark.parametrize("task", ruler.TASKS)
def test_short_lengths_shrink_or_say_what_they_need(task):
    for length in (16, 200, 300, 512, 700):
        try:
            examples = make(task, length, n=3)
        except InputError as error:
            assert re.search(r"at least \d+ tokens", str(error)) and "raise the length" in str(error)
            continue
        assert all(total(example) <= length for example in examples)
        assert len({example.info["published_form"] for example in examples}) == 1


@pytest.mark.parametrize("task", ruler.TASKS)
def test_every_named_minimum_is_enough(task):
    with pytest.raises(InputError) as raised:
        make(task, 150 if task == "fwe" else 40, n=1)
    least = int(re.search(r"at least (\d+) tokens", str(raised.value))[1])
    shortest = make(task, least + 10, n=1)[0]
    assert shortest.info["published_form"] == (task not in ("vt", "cwe"))


@pytest.mark.parametrize("task", ruler.TASKS)
def test_items_depend_on_seed_and_number_only(task):
    first, second = make(task, 900), make(task, 900)
    assert first == second
    assert make(task, 900, n=1) == first[:1]
    assert first[0].context != first[1].context
    assert make(task, 900, seed=43)[0].context != first[0].context
    assert make(task, 1200)[0].questions[0].references == first[0].questions[0].references


class Words:
    """A tokenizer whose counts no library version changes."""

    def encode(self, text, add_special_tokens):
        return [0] * len(re.findall(r"\w+|\W", text))


def test_text_is_the_same_on_every_platform_and_python():
    digest = hashlib.sha256()
    for task in ruler.TASKS:
        digest.update(text_of(ruler.generate(task, 1, 1500, Words(), 7, offline())[0]).encode())
    assert digest.hexdigest() == "2a8b1fccb615a97643d1e0a74fb0e9dec87beb895c94f197afae43b8c63430b1"


@pytest.mark.parametrize("task", ruler.TASKS)
def test_prompt_is_the_published_template(task):
    """The parts, joined, are template + answer prefix around the context, and a one-shot example before them."""
    quoted, example = definitions.task(task), make(task)[0]
    pattern = re.escape(quoted.template + quoted.answer_prefix)
    if quoted.options.get("values") == quoted.options.get("queries") == 1:
        for old, new in quoted.options["singular"]:
            pattern = pattern.replace(re.escape(old), re.escape(new))
    pattern = re.sub(r"\\\{\w+\\\}", lambda m: "(.+?)" if m[0] != r"\{context\}" else "(?P<context>(?s:.+))", pattern)
    text = text_of(example)
    shot = definitions.task(task).family in ("vt", "cwe")
    found = re.fullmatch(("(?P<shot>(?s:.+?))" if shot else "") + pattern, text)
    assert found and found["context"] == example.context.removeprefix(" ")
    assert example.questions[0].answer_prefix and example.questions[0].text.endswith(example.questions[0].answer_prefix)


@pytest.mark.parametrize("task", [name for name in ruler.TASKS if name.startswith("niah")])
def test_needles(task):
    options = definitions.task(task).options
    for example in make(task, n=4):
        pairs = re.findall(
            rf"One of the special magic {options['value']} for (\S+) is: (\S+?)\.(?=\s|$)", example.context
        )
        asked = re.search(
            r"for (\S+(?:, \S+)*?(?:, and \S+)?) mentioned in the provided text\?", example.questions[0].text
        )
        keys = re.split(r", and |, ", asked[1])
        assert len(keys) == options["queries"]
        assert sorted(example.questions[0].references) == sorted(value for key, value in pairs if key in keys)
        assert len(example.questions[0].references) == options["queries"] * options["values"]
        wanted = options["keys"] * options["values"]
        assert len(pairs) > wanted if options["haystack"] == "needle" else len(pairs) == wanted
        assert len({value for _, value in pairs}) == len(pairs)
        if options["haystack"] == "noise":
            lines = set(example.context.split("\n"))
            assert definitions.SENTENCES["noise"] in lines and len(lines) == 1 + wanted
        form = {"numbers": r"\d{7}", "uuids": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"}
        assert all(re.fullmatch(form[options["value"]], value) for _, value in pairs)


def test_needle_in_prose_stands_between_sentences_at_a_published_depth():
    assert niah.DEPTHS[:4] == (0, 3, 5, 8) and niah.DEPTHS[-1] == 100 and len(niah.DEPTHS) == 40
    for example in make("niah_multikey_1", n=5):
        before = re.split(r"One of the special magic numbers for \S+ is: \d+\. ?", example.context)
        assert len(before) == 5
        assert " ".join("".join(before).split()) in " ".join([*prose(), *prose()])
        at_end = before[-1] == ""  # a needle at depth 100 follows the last sentence, which is cut to the length
        assert all(part == "" or part.endswith(". ") for part in before[: -2 if at_end else -1])


def test_values_are_asked_in_another_order_than_the_text_has_them():
    orders = []
    for example in make("niah_multivalue", n=8):
        places = [example.context.index(value) for value in example.questions[0].references]
        orders.append(places == sorted(places))
    assert not all(orders)


def test_inserts_stand_before_distinct_lines():
    lines = [str(n) for n in range(6)]
    for seed in range(20):
        merged = scatter(lines, ["a", "b", "c"], random.Random(seed))
        assert [text for text in merged if text.isdigit()] == lines
        assert re.fullmatch(r"\d*a\d+b\d+c\d+", "".join(merged))
    assert scatter([], ["a", "b"], random.Random(0)) == ["a", "b"]


def test_variable_tracking_follows_the_chain():
    for example in make("vt", n=4):
        shot, text = example.instruction.rsplit("\n\nMemorize", 1)[0], example.context
        for part, letters in ((shot, 3), (text, 5)):
            names = re.findall(rf"VAR ([A-Z]{{{letters}}}) = (VAR )?(\w+)", part)
            assert len(names) == 5 and names[0][2].isdigit()
            assert [b[2] for b in names[1:]] == [a[0] for a in names[:-1]]  # in order, each from the one before
            if part is text:
                assert example.questions[0].references == tuple(name[0] for name in names)
                assert f"assigned the value {names[0][2]} in" in example.questions[0].text
            else:
                assert part.endswith("they are:  " + " ".join(name[0] for name in names))
    assert len(tokenizer().encode(shot.rsplit("  ", 1)[0])) <= 500


@pytest.mark.parametrize(("length", "repeats", "shot"), [(2048, (6, 1), (3, 1)), (8192, (30, 3), (10, 3))])
def test_common_words_are_common(length, repeats, shot):
    example = make("cwe", length, n=1)[0]
    counts = Counter(re.findall(r"\d+\. (\S+)", example.context))
    assert {counts[word] for word in example.questions[0].references} == {repeats[0]}
    assert len(example.questions[0].references) == 10
    assert Counter(counts.values()) == {repeats[0]: 10, repeats[1]: example.info["distinct_words"] - 10}
    numbers = [int(number) for number in re.findall(r"(\d+)\. ", example.context)]
    assert numbers == list(range(1, len(numbers) + 1))
    one_shot, answer = re.fullmatch(
        r".+?often\.\n(.+)\nQuestion.+?are: (1\. .+?)\n.+often\.\n", example.instruction, re.S
    ).groups()
    shown = Counter(re.findall(r"\d+\. (\S+)", one_shot))
    assert sorted(re.findall(r"\d+\. (\S+)", answer)) == sorted(w for w, n in shown.items() if n == shot[0])
    assert set(shown.values()) == set(shot)


def test_common_words_take_other_words_when_the_split_runs_out():
    few = ruler.offline([], words()[:900])
    example = ruler.generate("cwe", 1, 8192, tokenizer(), 1, few)[0]
    assert example.info["words_held_out"] is False
    assert set(Counter(re.findall(r"\d+\. (\S+)", example.context)).values()) == {30, 3}  # no word from both lists
    assert {draws.split_of(word) for word in example.questions[0].references} == {"eval"}
    with pytest.raises(InputError, match="distinct words: pass a longer list"):
        ruler.generate("cwe", 1, 32768, tokenizer(), 1, few)


def test_frequent_words_follow_the_zipf_law():
    for example in make("fwe", 4096, n=3):
        counts = Counter(example.context.split())
        ranked = [word for word, _ in counts.most_common()]
        assert ranked[0] == "..." and tuple(ranked[1:4]) == example.questions[0].references
        assert counts[ranked[1]] > counts[ranked[2]] > counts[ranked[3]] > counts[ranked[4]]
        assert len(counts) <= (4096 - 50) // 50
    # 1000 words, alpha 2: 1000 / zeta(2) = 607.93; / 4 = 151.98; / 9 = 67.5; / 16 = 37.99
    assert aggregation.zipf_counts(1000, 4, 2.0) == [607, 151, 67, 37]


def test_questions_about_facts_are_answered_by_the_documents():
    for example in make("qa_1", n=6):
        documents = re.split(r"(?:\n\n|^)Document \d+:\n", example.context)[1:]
        subject = re.search(
            r"[A-Z][a-z]+(?: [A-Z][a-z]+)?(?=\?| b| m| k| f)", example.questions[0].text.split("Question: ")[1][5:]
        )[0]
        assert (
            sum(subject in document and example.questions[0].references[0] in document for document in documents) == 1
        )
        assert example.info["documents"] == len(documents)
    first = [example.context.index(example.questions[0].references[0]) for example in make("qa_1", n=8)]
    assert max(first) > 800  # the golden document is not always the first
    for example in make("qa_2", n=6):
        documents = re.split(r"(?:\n\n|^)Document \d+:\n", example.context)[1:]
        person = re.search(r"where (\w+ \w+) was born", example.questions[0].text)[1]
        about = next(document for document in documents if f"{person} was born" in document)
        town = re.search(r"in the town of (\w+)\.", about)[1]
        assert example.questions[0].references[0] not in about
        assert any(
            document.startswith(town) and example.questions[0].references[0] in document for document in documents
        )


@pytest.mark.parametrize("split", ["eval", "train"])
@pytest.mark.parametrize("task", ruler.TASKS)
def test_every_drawn_string_is_of_the_split(task, split):
    found = []
    for example in make(task, n=3, split=split):
        text = text_of(example)
        if task.startswith("niah"):
            strings = [s for pair in re.findall(r"magic \w+ for (\S+) is: (\S+?)\.(?=\s|$)", text) for s in pair]
        elif task == "vt":
            strings = [s for pair in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text) for s in pair]
        elif task == "cwe":
            strings = re.findall(r"\d+\. (\w+)", text)
        elif task == "fwe":
            strings = [word for word in example.context.split() if word != "..."]
        else:
            strings = re.findall(
                r"\b[A-Z][a-z]+ [A-Z][a-z]+\b|\b[A-Z][a-z]+(?:ton|ville|burg|stead|mouth|field|shire)\b",
                example.context,
            )
            strings = [s for s in strings if s.split()[0] not in ("In", "Document")]
        found += strings
    assert len(found) > 5 and {draws.split_of(s) for s in found} == {split}


def test_split_is_the_md5():
    assert draws.split_of("abc") == "eval"  # RFC 1321: 900150..., and 0x90 = 144 = 8 * 18
    assert draws.split_of("") == "train"  # d41d8c..., and 0xd4 = 212 = 8 * 26 + 4
    assert draws.split_of("a") == "train"  # 0cc175..., and 0x0c = 12 = 8 + 4
    assert draws.of_split(map(str, range(60)), "eval") == [
        str(i) for i in range(60) if hashlib.md5(str(i).encode()).digest()[0] % 8 == 0
    ]
    assert 0.1 < sum(draws.split_of(str(i)) == "eval" for i in range(4000)) / 4000 < 0.15


def test_world_has_the_facts_its_questions_ask():
    world = facts.world(random.Random(1), None, set())
    assert all(query.answer in world.person for query in world.person_queries)
    assert all(query.answer in world.town for query in world.town_queries)
    assert all(q.bridge in world.person and q.bridge in world.town and q.answer in world.town for q in world.two_hop)


def test_chat_template_counts_and_wraps_the_prompt():
    example = make("qa_1", 700, n=1, chat=True)[0]
    prompt = render(example, tokenizer(), chat=True)
    assert total(example, chat=True) <= 700 < total(example, chat=True) + 130
    text = tokenizer().decode(prompt.prefix + prompt.questions[0])
    assert text.startswith("<|im_start|>user\nAnswer the question") and text.endswith("<|im_start|>assistant\n Answer:")


def test_parts_tokenise_as_the_whole():
    """A space before the context belongs to it, so that cutting the prompt into parts changes no word's tokens."""
    example = make("fwe", 700, n=1)[0]
    assert example.instruction.endswith("coded words.") and example.context.startswith(" ")
    prompt = render(example, tokenizer())
    assert prompt.prefix + prompt.questions[0] == tokenizer().encode(text_of(example), add_special_tokens=False)


def test_prose_goes_on_from_its_start():
    text = Prose(("One two three.", "Four five.", "Six."))
    assert text.words(0, 4) == ["One two three.", "Four"]
    assert text.words(1, 5) == ["Four five.", "Six.", "One two"]
    assert text.words(2, 13) == [
        "Six.",
        "One two three.",
        "Four five.",
        "Six.",
        "One two three.",
        "Four five.",
        "Six.",
    ]


@pytest.mark.parametrize("slope", [0.3, 1, 7, 60])
@pytest.mark.parametrize("limit", [10, 57, 1000, 100_000])
def test_fit_finds_the_largest(slope, limit):
    calls = []

    def size(n):
        calls.append(n)
        return 9 + int(slope * n) + n % 2  # with small dips

    fitted = largest_fitting(size, limit, 1, None)
    assert len(calls) < 25
    if fitted is None:
        assert size(1) > limit
    else:
        assert fitted == (fitted[0], size(fitted[0])) and fitted[1] <= limit < size(fitted[0] + 1)
    assert largest_fitting(size, 10**9, 1, 50) == (50, size(50))


def test_bad_input_is_one_sentence():
    with pytest.raises(InputError, match="did you mean 'niah_single_1'"):
        make("niah_singel_1")
    with pytest.raises(InputError, match="at least one item"):
        make("vt", n=0)
    with pytest.raises(InputError, match="did you mean 'eval'"):
        offline("evel")
    bare = ruler.offline([], [])
    for task, message in {
        "niah_single_1": "word list",
        "niah_multikey_3": None,
        "niah_single_2": "word list",
        "cwe": "pass a longer one",
    }.items():
        if message is None:
            assert ruler.generate(task, 1, 1024, tokenizer(), 1, bare)
        else:
            with pytest.raises(InputError, match=message):
                ruler.generate(task, 1, 1024, tokenizer(), 1, bare)
    with pytest.raises(InputError, match="pass its sentences"):
        ruler.generate("niah_single_2", 1, 1024, tokenizer(), 1, ruler.offline([], words()))
    with pytest.raises(InputError, match="no unused pair of words"):
        ruler.generate("niah_multikey_2", 1, 4096, tokenizer(), 1, ruler.offline([], words()[:8]))
