"""Text corpora, their split, token pieces, outside corpora and the n-gram bar."""

import hashlib
import itertools
import json
import lzma
import math
import shutil
import sys
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvrepro.data import corpora, ngram
from kvrepro.data.sources import SEPARATOR, TEXT, Folder, Hub, Shipped, manifest, source
from kvrepro.errors import InputError

NAMES = corpora.names()


@pytest.fixture(scope="module")
def bytes_tokenizer():
    """One token a byte, so that lengths and places can be checked against the text itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


# --- the shipped files -----------------------------------------------------------------------------------------------


def test_at_least_five_kinds_and_at_most_six_megabytes():
    kinds = {entry["kind"] for entry in manifest().values()}
    assert {"prose", "code", "reference documentation", "mathematics", "question-answer"} <= kinds
    assert sum(path.stat().st_size for path in TEXT.iterdir()) <= 6_000_000


@pytest.mark.parametrize("name", NAMES)
def test_corpus_matches_its_manifest_and_has_a_licence(name):
    entry = manifest()[name]
    packed = (TEXT / f"{name}.txt.xz").read_bytes()
    raw = lzma.decompress(packed)
    assert (len(packed), len(raw)) == (entry["bytes_compressed"], entry["bytes"])
    assert hashlib.sha256(raw).hexdigest() == entry["sha256"]
    assert raw.count(SEPARATOR.encode()) + 1 == entry["documents"]
    licence = (TEXT / entry["licence_file"]).read_text("utf-8")
    assert f'"{name}"' in licence and entry["sources"] and entry["licence"]


@pytest.mark.parametrize("name", NAMES)
def test_text_is_clean(name):
    text = "".join(Shipped(name).texts())
    assert unicodedata.is_normalized("NFC", text)
    assert {c for c in set(text) if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}


def test_every_file_in_the_folder_is_known():
    known = {"manifest.yaml"} | {f"{n}.txt.xz" for n in NAMES} | {e["licence_file"] for e in manifest().values()}
    assert {path.name for path in TEXT.iterdir()} == known


@pytest.fixture
def copied(tmp_path):
    """A folder with one small shipped corpus, to damage."""
    shutil.copy(TEXT / "manifest.yaml", tmp_path)
    shutil.copy(TEXT / "factbook.txt.xz", tmp_path)
    return tmp_path


def test_missing_corpus_is_named(copied):
    with pytest.raises(InputError, match=r"kjv\.txt\.xz is missing"):
        Shipped("kjv", copied).texts()


def test_truncated_corpus_is_named(copied):
    path = copied / "factbook.txt.xz"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"factbook\.txt\.xz is corrupt"):
        Shipped("factbook", copied).texts()


def test_changed_corpus_is_named(copied):
    path = copied / "factbook.txt.xz"
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()).replace(b"Austria", b"Ausland")))
    with pytest.raises(InputError, match=r"factbook\.txt\.xz is not the text that the manifest records"):
        Shipped("factbook", copied).texts()


def test_missing_manifest_is_named(tmp_path):
    with pytest.raises(InputError, match=r"manifest\.yaml is missing"):
        Shipped("kjv", tmp_path).texts()


def test_unknown_corpus_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'factbook'"):
        corpora.documents("factbok", "train")


# --- split -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_split_is_disjoint_complete_and_large_enough(name):
    train, held = corpora.documents(name, "train"), corpora.documents(name, "heldout")
    assert not set(train) & set(held)
    assert sorted(train + held) == sorted(Shipped(name).texts())
    assert len(held) >= 12 and sum(map(len, held)) >= 60_000
    assert len(held) < len(train) / 5


def test_split_is_the_one_the_models_were_trained_with():
    counts = {name: len(corpora.documents(name, "heldout")) for name in NAMES}
    assert counts == {"kjv": 94, "stdlib": 16, "pydoc": 28, "maths": 76, "factqa": 126, "factbook": 21, "lexicon": 22}
    for text in corpora.documents("kjv", "heldout"):
        assert int(hashlib.md5(text.encode()).hexdigest(), 16) % 12 == 0


def test_held_out_texts_do_not_depend_on_order_or_company():
    texts = [f"document {i} " * 1000 for i in range(600)]
    held = corpora.held_out(texts)
    assert corpora.held_out(reversed(texts)) == held
    assert corpora.held_out(texts[:300]) == held & set(texts[:300])


def test_short_corpora_hold_out_the_minimum():
    texts = [f"{i} " + "x" * 2000 for i in range(100)]
    held = corpora.held_out(texts)
    assert sum(map(len, held)) >= 60_000 and len(held) == 30


def test_unknown_split():
    with pytest.raises(InputError, match="split 'test' is unknown"):
        corpora.documents("kjv", "test")


# --- sentences and words ---------------------------------------------------------------------------------------------


def test_sentences_are_whole_and_on_one_line():
    found = corpora.sentences("kjv", "heldout")
    assert len(found) > 1000
    assert all(s[-1] in ".!?\"'”’)" and "\n" not in s and len(s) <= 600 for s in found)
    assert not set(found) & set(corpora.sentences("factbook", "heldout"))


def write_jsonl(path, texts, column="text"):
    path.write_text("".join(json.dumps({column: text, "id": i}) + "\n" for i, text in enumerate(texts)))


def padded(sentence, i):
    return f"{sentence} Number {i} of many. " + f"filler{i} " * 400


def test_sentences_and_words_of_a_known_text(tmp_path):
    text = 'The green\nhouse stood. "Who lives here?" she asked twice.\n\n* a list\n\nTwo words. Isn\'t re-use a_word?'
    write_jsonl(tmp_path / "a.jsonl", [padded(text, i) for i in range(60)])
    folder = Folder("known", tmp_path)
    found = corpora.sentences(folder, "train")
    assert found[:2] == ["The green house stood.", '"Who lives here?" she asked twice.']
    assert "* a list" not in found and "Two words." not in found
    train = len(corpora.documents(folder, "train"))
    words = corpora.common_words(train, corpora=[folder])
    # equal counts stand in alphabetical order; parts of identifiers, hyphenated words and capitals do not count
    assert words == sorted(["asked", "green", "here", "house", "list", "lives", "many", "stood", "twice", "words"])
    assert corpora.common_words(train + 1, corpora=[folder]) == []


def test_common_words_of_prose():
    words = corpora.common_words(100, corpora=["kjv", "factbook"])
    assert len(words) > 400 and words == corpora.common_words(100, corpora=["kjv", "factbook"])
    assert all(4 <= len(w) <= 9 and w.isalpha() and w == w.lower() for w in words)


# --- token pieces ----------------------------------------------------------------------------------------------------


def spans(pieces, texts, tokenizer):
    """Where each piece stands, as (document, start, end) in characters."""
    found = []
    for ids in pieces:
        text = tokenizer.decode(ids).rstrip("\ufffd")  # a piece may end inside a character
        index = next(i for i, t in enumerate(texts) if text in t)
        found.append((index, texts[index].index(text), texts[index].index(text) + len(text)))
    return found


def test_pieces_have_the_drawn_lengths_and_start_at_lines(bytes_tokenizer):
    pieces = corpora.cut("kjv", bytes_tokenizer, (750, 1250), n=150, seed=3)
    lengths = [len(p) for p in pieces]
    assert min(lengths) >= 750 and max(lengths) <= 1250 and len(set(lengths)) > 80
    texts = corpora.documents("kjv", "train")
    places = spans(pieces, texts, bytes_tokenizer)
    assert all(start == 0 or texts[i][start - 1] == "\n" for i, start, _ in places)
    assert 0 < sum(start == 0 for _, start, _ in places) < 150


def test_pieces_do_not_overlap(bytes_tokenizer):
    texts = corpora.documents("lexicon", "heldout")
    pieces = corpora.cut("lexicon", bytes_tokenizer, (300, 600), n=90, seed=0, split="heldout")
    places = sorted(spans(pieces, texts, bytes_tokenizer))
    assert len({i for i, _, _ in places}) == len(texts)  # every document serves before one serves much more
    for (i, _, end), (j, start, _) in itertools.pairwise(places):
        assert i != j or end <= start


def test_pieces_depend_on_the_seed_only(bytes_tokenizer):
    first = corpora.cut("factbook", bytes_tokenizer, n=5, seed=1)
    assert corpora.cut("factbook", bytes_tokenizer, n=5, seed=1) == first
    assert corpora.cut("factbook", bytes_tokenizer, n=5, seed=2) != first


def test_long_pieces_join_short_documents(bytes_tokenizer):
    pieces = corpora.cut("kjv", bytes_tokenizer, (15_000, 20_000), n=6, seed=0, join=True)
    assert all(15_000 <= len(p) <= 20_000 for p in pieces)
    texts = corpora.documents("kjv", "train")
    text = bytes_tokenizer.decode(pieces[0])
    parts = text.split("\n\n")
    first = next(i for i, t in enumerate(texts) if t.endswith(parts[0]))
    assert len(parts) > 2 and parts[1] == texts[first + 1]  # neighbours stay neighbours


def test_too_many_pieces_is_one_sentence(bytes_tokenizer):
    with pytest.raises(InputError, match=r"only \d+ pieces of 9000 to 9500 tokens fit, 500 were asked for"):
        corpora.cut("kjv", bytes_tokenizer, (9000, 9500), n=500, split="heldout")
    with pytest.raises(InputError, match="is no range"):
        corpora.cut("kjv", bytes_tokenizer, (100, 50))


# --- outside corpora -------------------------------------------------------------------------------------------------


def write_parquet(path, texts, column="text"):
    pq.write_table(pa.table({column: texts, "score": [1.0] * len(texts)}), path)


def test_jsonl_and_parquet_folders_have_the_same_interface(tmp_path, bytes_tokenizer):
    texts = [f"Document {i}.\n" + f"It has line {i} of text.\n" * 100 for i in range(80)]
    write_jsonl(tmp_path / "part-0.jsonl", texts[:50])
    write_parquet(tmp_path / "part-1.parquet", [*texts[50:], None, ""])
    folder = source({"name": "fineweb", "folder": str(tmp_path)})
    assert folder.texts() == tuple(texts)
    assert sorted(corpora.documents(folder, "train") + corpora.documents(folder, "heldout")) == sorted(texts)
    entry = {"name": "fineweb", "folder": str(tmp_path)}
    assert [len(p) for p in corpora.cut(entry, bytes_tokenizer, (40, 40), n=3)] == [40, 40, 40]


def test_rows_column_and_exclude(tmp_path):
    write_parquet(tmp_path / "a.parquet", ["about RULER", "first", "second", "third"], column="content")
    folder = source({"name": "x", "folder": str(tmp_path), "column": "content", "rows": 2, "exclude": ["RULER"]})
    assert folder.texts() == ("first", "second")


def test_hub_reads_what_datasets_streams(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["one", "two", "", "three", "four"])
    assert Hub("local", str(tmp_path), rows=3).texts() == ("one", "two", "three")
    with pytest.raises(InputError, match="no column 'body'; it has id, text"):
        Hub("local", str(tmp_path), column="body").texts()


def test_hub_without_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="install the package datasets"):
        source({"name": "fineweb", "hub": "HuggingFaceFW/fineweb-edu", "subset": "sample-10BT"}).texts()


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_missing_column_names_what_is_there(tmp_path, name):
    (write_jsonl if name.endswith("jsonl") else write_parquet)(tmp_path / name, ["x"], column="body")
    with pytest.raises(InputError, match=r"no column 'text'; it has body, "):
        Folder("x", tmp_path).texts()


def test_broken_folders(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Folder("x", tmp_path / "nowhere").texts()
    with pytest.raises(InputError, match=r"holds no \.jsonl"):
        Folder("x", tmp_path).texts()
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 2 is not JSON"):
        Folder("x", tmp_path).texts()
    (tmp_path / "a.jsonl").unlink()
    write_parquet(tmp_path / "b.parquet", ["text"] * 100)
    (tmp_path / "b.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match=r"b\.parquet is not a complete Parquet file"):
        Folder("x", tmp_path).texts()


def test_a_corpus_too_small_to_split(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [f"short {i}" for i in range(20)])
    with pytest.raises(InputError, match=r"corpus 'tiny' has 20 documents .* too few to hold out"):
        corpora.documents(Folder("tiny", tmp_path), "train")


def test_wrong_entries():
    with pytest.raises(InputError, match="exactly one of folder and hub"):
        source({"name": "x"})
    with pytest.raises(InputError, match="did you mean 'column'"):
        source({"name": "x", "folder": "data", "colum": "text"})


# --- n-gram ----------------------------------------------------------------------------------------------------------


def brute_force(documents, vocab, history, word):
    """Witten-Bell with interpolation straight from its definition."""
    if history is None:
        return 1.0 / vocab
    followers = Counter()
    for ids in documents:
        for i in range(len(history), len(ids)):
            if tuple(ids[i - len(history) : i]) == history:
                followers[ids[i]] += 1
    shorter = brute_force(documents, vocab, history[1:] if history else None, word)
    if not followers:
        return shorter
    total, types = followers.total(), len(followers)
    return (followers[word] + types * shorter) / (total + types)


def test_ngram_equals_brute_force():
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 4, size).tolist() for size in (1, 2, 30, 17, 0)]
    model = ngram.fit(documents, vocab=5)
    for ids in itertools.product(range(5), repeat=4):
        expected = [brute_force(documents, 5, ids[max(0, i - 2) : i], ids[i]) for i in range(4)]
        np.testing.assert_allclose(ngram.probabilities(model, ids), expected, rtol=1e-12)


def test_ngram_counts_by_hand():
    model = ngram.fit([[0, 1, 0, 1, 1], [1, 0]], vocab=3)
    one, two, three = model.levels
    assert dict(zip(one.grams, one.counts, strict=True)) == {0: 3, 1: 4}
    assert dict(zip(two.grams, two.counts, strict=True)) == {0 * 3 + 1: 2, 1 * 3 + 0: 2, 1 * 3 + 1: 1}
    assert dict(zip(three.grams, three.counts, strict=True)) == {0 * 9 + 1 * 3 + 0: 1, 9 + 0 + 1: 1, 0 + 3 + 1: 1}
    # P(1) = (4 + 2/3) / (7 + 2); P(1 | 0) = (2 + 1 P(1)) / (2 + 1)
    first = (4 + 2 / 3) / 9
    np.testing.assert_allclose(ngram.probabilities(model, [0, 1])[1], (2 + first) / 3)


def test_ngram_probabilities_sum_to_one():
    rng = np.random.default_rng(1)
    model = ngram.fit([rng.zipf(1.5, 500) % 7], vocab=8)
    for history in ([], [3], [1, 2], [7, 7], [0, 7], [5, 1, 1]):
        total = sum(ngram.probabilities(model, [*history, word])[-1] for word in range(8))
        assert math.isclose(total, 1.0, rel_tol=1e-12)


def test_ngram_perplexity_of_repetition_and_of_noise():
    model = ngram.fit([[0, 1, 2] * 1000], vocab=1000)
    assert ngram.perplexity(model, [[0, 1, 2] * 200]) < 1.05
    assert ngram.perplexity(model, [[5, 6, 7], []]) > 1000


def test_ngram_bad_input():
    with pytest.raises(InputError, match=r"token ids must lie in \[0, 4\); found 0 to 4"):
        ngram.fit([[0, 4]], vocab=4)
    with pytest.raises(InputError, match="no training text"):
        ngram.fit([[]], vocab=4)
    with pytest.raises(InputError, match="does not fit 63 bits"):
        ngram.fit([[0]], vocab=2**17, order=4)
    with pytest.raises(InputError, match="at least one token"):
        ngram.perplexity(ngram.fit([[0]], vocab=4), [[]])
