"""The protocol end to end on tiny models: rows, checks, and that a broken cache is marked."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from kvrepro.benchmarks.example import Example, Question, Sampling, render
from kvrepro.cache.admitted import Policy
from kvrepro.cache.fork import fork
from kvrepro.cache.joined import join
from kvrepro.cache.ragged import EMPTY
from kvrepro.errors import InputError
from kvrepro.evaluate import protocol
from kvrepro.evaluate.arms import Arm, check_budgets
from kvrepro.evaluate.arms import arms as arms_of
from kvrepro.evaluate.decode import ask, confirmed, decode
from kvrepro.evaluate.protocol import evaluate
from kvrepro.methods import admission, eviction, selection
from kvrepro.methods.admission.base import Admission
from kvrepro.models.capture import prefill
from kvrepro.models.gated_attention import keys_before_rope
from kvrepro.models.sampling import sample
from kvrepro.results import ANSWERS, read_rows, valid, write_rows

BASE = {"paper": "gatesight", "experiment": "ruler", "tier": "test"}


def example(item=0, sentences=12):
    return Example(
        "ruler",
        "niah_single_1",
        item,
        42 + item,
        "Remember this text.\n",
        " The grass is green. The sky is blue." * sentences,
        (Question("\nWhat is the number?", ("7",), 6), Question("\nWhat is blue?", ("sky",), 4)),
    )


def score(example, question, text):
    return float(any(r in text for r in question.references))


def arms():
    made = []
    for name in ("random", "keydiff", "snapkv"):
        method = eviction.build(name)
        made += [Arm(name, eviction=method, kept=kept) for kept in (0.1, 0.5, 1.0)]
    return made


@pytest.fixture(scope="module")
def rows(tiny_hybrid):
    examples = [example(0), replace(example(1), unit=0)]
    return pd.DataFrame(evaluate(tiny_hybrid, examples, arms(), score, BASE, together=200_000))


def test_rows_say_which_items_are_one(rows, tiny_hybrid):
    assert len(rows[rows["item"] == 1]) and (rows["unit"] == 0).all()
    alone = pd.DataFrame(evaluate(tiny_hybrid, [example(3)], [], score, BASE))
    assert (alone["unit"] == 3).all()


def test_every_arm_answers_every_question(rows):
    assert len(rows) == 2 * 2 * (2 + 9)
    assert not rows.duplicated(["method", "budget", "item", "question"]).any()
    assert rows["ok"].all(), rows[~rows["ok"]]
    ANSWERS.validate(rows)


def test_kept_entries_and_bytes_are_the_budget(rows, tiny_hybrid):
    g = tiny_hybrid.geometry
    for row in rows.itertuples():
        body = row.n_tokens - row.protected
        want = g.cache_rows * (round(row.budget * body) + row.protected)
        assert row.kept_entries == want and row.bytes_held == want * g.head_dim * 2 * 4


def test_kept_fraction_one_is_the_dense_model(rows):
    answers = rows[rows["budget"] == 1.0].groupby(["item", "question"])["prediction"].nunique()
    assert (answers == 1).all()


def test_compression_is_not_silently_off(rows):
    pruned = rows[rows["budget"] == 0.1].set_index(["method", "item", "question"])["prediction"]
    dense = rows[rows["method"] == "dense"].set_index(["item", "question"])["prediction"]
    changed = [text != dense[key[1:]] for key, text in pruned.items()]
    assert any(changed)


def test_hashes_and_options_are_recorded(rows, tiny_hybrid):
    prompt = render(example(0), tiny_hybrid.tokenizer)
    first = rows[rows["item"] == 0]
    assert set(first["token_sha256"]) == {prompt.token_sha256}
    options = json.loads(rows[rows["method"] == "snapkv"]["options"].iloc[0])
    snapkv = {"method": "snapkv", "kernel": 7, "window": 32, "pooling": "max", "group": "max"}
    assert options == {"allocation": "flat", "eviction": snapkv}


def test_a_gate_proportional_allocation_can_be_given_to_any_method(tiny_hybrid):
    class Gated(type(eviction.build("random"))):
        def layer_weights(self, prefill):
            return torch.tensor([1.0, 3.0])

    arm = Arm("gated", eviction=Gated(), kept=0.2, allocation="gate_proportional")
    got = pd.DataFrame(evaluate(tiny_hybrid, [example()], [arm], score, BASE))
    row = got[got["method"] == "gated"].iloc[0]
    assert row.ok and json.loads(row.options)["allocation"] == "gate_proportional"


def test_admission_goes_through_the_same_evaluation(tiny_dense):
    method = admission.build("local_attention", {"sinks": 4})
    got = pd.DataFrame(
        evaluate(
            tiny_dense, [example()], [Arm("local_attention", admission=method, kept=k) for k in (0.2, 1.0)], score, BASE
        )
    )
    ANSWERS.validate(got)
    local = got[(got["method"] == "local_attention") & (got["budget"] == 0.2)].iloc[0]
    assert local.ok and local.kept_entries == tiny_dense.geometry.cache_rows * round(0.2 * local.n_tokens)
    assert got["ok"].all(), "kept fraction 1.0 must answer like the dense model"


def test_a_scorer_may_give_several_metrics(tiny_dense):
    def both(example, question, text):
        return {"score": 1.0, "official": 0.0}

    got = pd.DataFrame(evaluate(tiny_dense, [example()], [], both, BASE))
    ANSWERS.validate(got)
    assert set(zip(got["metric"], got["value"], strict=True)) == {("score", 1.0), ("official", 0.0)}
    assert not got.duplicated(["method", "question", "metric"]).any() and len(got) == 2 * 2 * 2


def test_a_cache_that_keeps_too_much_is_marked_and_left_out(tiny_hybrid, monkeypatch, tmp_path):
    real = protocol.keep_top

    def generous(ranks, counts, protected):
        return real(ranks, counts + 1, protected)

    monkeypatch.setattr(protocol, "keep_top", generous)
    got = pd.DataFrame(
        evaluate(tiny_hybrid, [example()], [Arm("random", eviction=eviction.build("random"), kept=0.5)], score, BASE)
    )
    bad = got[got["method"] == "random"]
    assert (bad["failed_checks"] == "budget").all() and not bad["ok"].any()
    write_rows(got, tmp_path / "rows.parquet", {})
    assert "random" not in set(valid(read_rows(tmp_path / "rows.parquet"))["method"])


def marked(tiny_hybrid, kept=0.5):
    got = pd.DataFrame(
        evaluate(tiny_hybrid, [example()], [Arm("random", eviction=eviction.build("random"), kept=kept)], score, BASE)
    )
    return set(got[got["method"] == "random"]["failed_checks"])


def test_answers_at_wrong_positions_are_marked(tiny_hybrid, monkeypatch):
    real = protocol.ask
    monkeypatch.setattr(protocol, "ask", lambda lm, cache, start, *a, **k: real(lm, cache, start - 1, *a, **k))
    assert marked(tiny_hybrid) == {"positions"}


def test_a_budget_that_is_not_the_papers_is_marked(tiny_hybrid, monkeypatch):
    real = protocol.allocate
    monkeypatch.setattr(protocol, "allocate", lambda *a: real(*a) // 2)
    assert marked(tiny_hybrid) == {"budget"}


def test_a_prefix_that_is_not_protected_is_marked(tiny_hybrid, monkeypatch):
    real = protocol.keep_top
    monkeypatch.setattr(protocol, "keep_top", lambda *a: [mask.flip(-1) for mask in real(*a)])
    assert marked(tiny_hybrid, kept=0.1) == {"protected"}


def test_entries_that_are_only_hidden_are_marked(tiny_hybrid, monkeypatch):
    real = protocol.fork

    def hidden(lm, parent, kept):
        children = real(lm, parent, [[torch.ones_like(mask) for mask in child] for child in kept])
        for number, layer in enumerate(children.attention):
            for row, child in enumerate(kept):
                layer.positions[row][~child[number]] = -1
        return children

    monkeypatch.setattr(protocol, "fork", hidden)
    monkeypatch.setattr(
        protocol, "Arm", lambda name, **parts: Arm(name, **parts | {"kept": 0.5})
    )  # no full child beside it
    assert "compaction" in next(iter(marked(tiny_hybrid)))


def test_a_score_that_is_not_finite_names_the_context(tiny_hybrid):
    class Broken(type(eviction.build("random"))):
        def score(self, prefill):
            return [s.fill_(float("nan")) for s in super().score(prefill)]

    with pytest.raises(InputError, match=r"ruler/niah_single_1 item 0.*broken.*not finite"):
        list(evaluate(tiny_hybrid, [example()], [Arm("broken", eviction=Broken(), kept=0.5)], score, BASE))


def test_a_context_shorter_than_its_prefix_is_refused(tiny_hybrid):
    empty = Example("ruler", "vt", 5, 1, "Remember this.", "", (Question("?", ("1",), 2),))
    with pytest.raises(InputError, match=r"ruler/vt item 5: the context has .* protected prefix"):
        list(evaluate(tiny_hybrid, [empty], [], score, BASE))


def test_budgets_are_checked_before_a_model_runs():
    with pytest.raises(InputError, match="keeps nothing"):
        check_budgets([Arm("random", eviction=eviction.build("random"), kept=0.001)], 120, 20)
    with pytest.raises(InputError, match="leaves no window"):
        check_budgets([Arm("local_attention", admission=admission.build("local_attention"), kept=0.5)], 120, 20)


def test_arms_come_from_the_config(tiny_hybrid):
    methods = {
        "snapkv": {"eviction": {"method": "snapkv", "window": 16}},
        "keydiff_published": {"eviction": {"method": "keydiff", "anchor": "mean_of_normalised"}, "kept": [0.3]},
        "quest": {"selection": {"method": "quest", "local": 8}, "over": {"selection": {"budget": [32, 64]}}},
        "both": {"admission": "local_attention", "selection": {"method": "quest", "budget": 300}},
    }
    made = arms_of(methods, [0.1, 0.5], "experiments.wg_kv.methods", tiny_hybrid)
    assert [(a.name, a.kept) for a in made] == [
        ("snapkv", 0.1),
        ("snapkv", 0.5),
        ("keydiff_published", 0.3),
        ("quest@budget=32", None),
        ("quest@budget=64", None),
        ("both", 0.1),
        ("both", 0.5),
    ]
    assert made[0].eviction.window == 16 and made[2].eviction.name == "keydiff"
    assert made[4].selection.budget == 64 and made[5].admission.sinks == 128 and made[5].selection.budget == 300


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"eviction": "snapvk"}, "it.eviction: .*did you mean 'snapkv'"),
        ({"admission": {"method": "local_atention"}}, "it.admission: .*did you mean 'local_attention'"),
        ({"eviction": {"window": 3}}, "it.eviction: the key 'method' is missing"),
        ({"evicton": "snapkv"}, "key 'evicton' is unknown; did you mean 'eviction'"),
        ({"kept": [0.5]}, "names no method"),
        ({"eviction": "snapkv", "admission": "local_attention"}, "combine either of them with a selection"),
        (
            {"selection": {"method": "quest", "budget": 300}, "kept": [0.5]},
            "no part of this method takes a kept fraction",
        ),
        ({"admission": "local_attention", "allocation": "flat"}, "only an eviction method has an allocation"),
        ({"eviction": "snapkv", "allocation": "flt"}, "did you mean 'flat'"),
        ({"eviction": "snapkv", "over": {"admission": {"sinks": [1]}}}, "over: part 'admission' is unknown"),
        ({"eviction": "snapkv", "over": {"eviction": {"windw": [1]}}}, "did you mean 'window'"),
    ],
    ids=str,
)
def test_a_method_that_cannot_be_run_is_one_sentence(method, message):
    with pytest.raises(InputError, match=message):
        arms_of({"it": method}, [0.1], "methods")


def composed(lm, method, sentences=12):
    """Rows of one method of the config on a model, references left out."""
    made = arms_of({"it": method}, [0.2, 1.0], "methods", lm)
    got = pd.DataFrame(evaluate(lm, [example(sentences=sentences)], made, score, BASE))
    ANSWERS.validate(got)
    assert got["ok"].all(), got[["method", "budget", "failed_checks"]]
    return got[got["method"].str.startswith("it")], got[got["method"] == "dense"]


def answers(rows):
    return rows.set_index(["budget", "question"])["prediction"].to_dict()


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid"])
def test_a_selection_holds_everything_and_reads_its_budget(model, request):
    lm = request.getfixturevalue(model)
    method = {"selection": {"method": "quest", "budget": 24, "local": 8}}
    rows, dense = composed(lm, method)
    assert rows["budget"].isna().all() and (rows["kept_entries"] == lm.geometry.cache_rows * rows["n_tokens"]).all()
    assert list(rows["prediction"]) != list(dense["prediction"])
    large, dense = composed(lm, {"selection": {"method": "quest", "budget": 2000}})
    assert list(large["prediction"]) == list(dense["prediction"])


@pytest.mark.parametrize("first", [{"admission": {"method": "local_attention", "sinks": 4}}, {"eviction": "keydiff"}])
def test_a_selection_goes_with_any_admission_or_eviction(tiny_dense, first):
    alone, _ = composed(tiny_dense, first)
    narrow, _ = composed(tiny_dense, first | {"selection": {"method": "quest", "budget": 24, "local": 8}})
    wide, _ = composed(tiny_dense, first | {"selection": {"method": "quest", "budget": 2000}})
    assert answers(wide) == answers(alone) != answers(narrow)
    assert list(narrow["kept_entries"]) == list(alone["kept_entries"])


@dataclass
class Gate(Admission):
    """Admits by the keys before RoPE; decides itself how much is held."""

    name = "test_gate"
    tau: float = 0.5

    def admit(self, layer, keys_pre_rope, keys, positions):
        return keys_pre_rope[..., 0].sigmoid()

    def policy(self, kept, n):
        return Policy(16, self.admit, self.tau)


def test_a_gate_decides_how_much_is_held(tiny_dense):
    made = [Arm(f"gate{tau}", admission=Gate(tau)) for tau in (0.0, 0.5, 1.1)]
    got = pd.DataFrame(evaluate(tiny_dense, [example()], made, score, BASE))
    assert got["ok"].all() and got[got["method"].str.startswith("gate")]["budget"].isna().all()
    share = got.groupby("method")["kept_entries"].first() / (tiny_dense.geometry.cache_rows * got["n_tokens"].iloc[0])
    assert share["gate0.0"] == 1.0 and 0.2 < share["gate0.5"] < 0.9
    assert share["gate1.1"] == 16 / got["n_tokens"].iloc[0]
    whole = got[got["method"].isin(["gate0.0", "dense"])].groupby("question")["prediction"].nunique()
    assert (whole == 1).all()


def test_an_entry_that_was_not_admitted_is_marked(tiny_dense, monkeypatch):
    real = protocol.feed

    def feed(lm, cache, *more):
        real(lm, cache, *more)
        cache.layers[1].decisions[0][:, 0, 3] ^= True

    monkeypatch.setattr(protocol, "feed", feed)
    got = pd.DataFrame(evaluate(tiny_dense, [example()], [Arm("gate", admission=Gate())], score, BASE))
    assert set(got[got["method"] == "gate"]["failed_checks"]) == {"admission"}


def test_a_selection_that_does_not_select_is_marked(tiny_dense, monkeypatch):
    quest = selection.build("quest", {"budget": 24, "local": 8})
    monkeypatch.setattr(type(quest), "select", lambda self, layer, query, cache: cache.positions >= 0)
    got = pd.DataFrame(evaluate(tiny_dense, [example()], [Arm("quest", selection=quest)], score, BASE))
    assert set(got[got["method"] == "quest"]["failed_checks"]) == {"selection"}


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid"])
def test_the_reference_confirms_only_what_it_would_answer(model, request):
    """An expected answer is confirmed exactly when plain decoding gives it, at its end too."""
    lm = request.getfixturevalue(model)
    prompt = render(example(), lm.tokenizer)
    parent = prefill(lm, torch.tensor(prompt.prefix), prompt.protected)
    n, ids, eos = len(prompt.prefix), prompt.questions[0], lm.model.generation_config.eos_token_id

    def cache():
        return copy.deepcopy(parent.cache)

    own = cache()
    right = decode(lm, own, [ask(lm, own, n, ids, 6)])[0]
    assert right.finish_reason == "length"
    found = confirmed(lm, cache(), n, ids, 6, right)
    assert found == right and torch.equal(found.positions, right.positions)
    wrong = [
        replace(right, tokens=(*right.tokens[:-1], right.tokens[-1] ^ 1)),
        replace(right, tokens=(right.tokens[0] ^ 1, *right.tokens[1:])),
        replace(right, tokens=right.tokens[:3]),
        replace(right, tokens=right.tokens[:3], finish_reason="eos"),
        replace(right, tokens=(), finish_reason="eos"),
    ]
    assert [confirmed(lm, cache(), n, ids, 6, answer) for answer in wrong] == [None] * 5
    lm.model.generation_config.eos_token_id = right.tokens[3]
    try:
        own = cache()
        ended = decode(lm, own, [ask(lm, own, n, ids, 6)])[0]
        assert ended.finish_reason == "eos" and confirmed(lm, cache(), n, ids, 6, ended) == ended
    finally:
        lm.model.generation_config.eos_token_id = eos


DRAWN = Sampling(temperature=3.0, top_p=0.95, top_k=20, seed=7)


def test_an_answer_is_sampled_by_the_draws_of_its_question(tiny_dense):
    """Against the whole sequence run anew for each token; rows have the same draws, and a greedy question beside it
    stays greedy."""
    lm, prompt = tiny_dense, render(example(), tiny_dense.tokenizer)
    n, ids, most = len(prompt.prefix), prompt.questions[0], 6
    parent = prefill(lm, torch.tensor(prompt.prefix), prompt.protected)
    draws, tokens = torch.rand(most, generator=torch.Generator().manual_seed(7)), []
    for draw in draws:
        logits = lm.model(torch.tensor([[*prompt.prefix, *ids, *tokens]])).logits[:, -1]
        tokens.append(int(sample(logits, draw[None], DRAWN)))
    own = copy.deepcopy(parent.cache)
    given = decode(lm, own, [ask(lm, own, n, ids, most, sampling=DRAWN)])[0]
    assert given.tokens == tuple(tokens)
    assert confirmed(lm, copy.deepcopy(parent.cache), n, ids, most, given, DRAWN) == given
    assert confirmed(lm, copy.deepcopy(parent.cache), n, ids, most, given) is None
    other = replace(DRAWN, seed=8)
    assert confirmed(lm, copy.deepcopy(parent.cache), n, ids, most, given, other) is None
    plain = copy.deepcopy(parent.cache)
    greedy = decode(lm, plain, [ask(lm, plain, n, ids, 4)])[0]
    before = {}
    with keys_before_rope(lm, before):
        parent = prefill(lm, torch.tensor(prompt.prefix), prompt.protected, query_window=1)
        whole = [torch.ones(keys.shape[:2], dtype=torch.bool) for keys in parent.keys]
        sessions = [fork(lm, parent, [whole] * rows) for rows in (2, 1)]
        posed = [ask(lm, sessions[0].cache, n, ids, most, 2, sampling=DRAWN), ask(lm, sessions[1].cache, n, ids, 4)]
        answers = decode(lm, join(lm, [each.cache for each in sessions], most, before), posed)
    assert [each.tokens for each in answers] == [given.tokens, given.tokens, greedy.tokens] and greedy != given


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid"])
def test_sampled_answers_pass_the_checks_of_identity(model, request):
    asked = example()
    first, second = asked.questions
    drawn = replace(asked, questions=(replace(first, sampling=DRAWN), second))
    lm = request.getfixturevalue(model)
    got = [pd.DataFrame(evaluate(lm, [each], arms(), score, BASE)) for each in (drawn, drawn, asked)]
    assert got[0]["ok"].all() and got[0].equals(got[1])
    whole = got[0]["budget"] == 1.0
    assert got[0][whole].groupby("question")["prediction"].nunique().eq(1).all()
    same = got[0]["prediction"] == got[2]["prediction"]
    assert same[got[0]["question"] == 1].all() and not same[(got[0]["question"] == 0) & whole].any()


def test_a_full_child_that_differs_is_marked_and_the_reference_keeps_its_answer(tiny_hybrid, monkeypatch):
    def dense():
        got = pd.DataFrame(evaluate(tiny_hybrid, [example()], [], score, BASE))
        return got[got["method"] == "dense"], got[got["method"] == "full"]

    before, _ = dense()
    real = protocol.fork

    def broken(lm, parent, kept):
        children = real(lm, parent, kept)
        children.attention[0].values.mul_(-3)
        return children

    monkeypatch.setattr(protocol, "fork", broken)
    after, full = dense()
    assert list(after["prediction"]) == list(before["prediction"]) and after["ok"].all()
    assert (full["failed_checks"] == "identity").any()


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid"])
def test_arms_that_admit_the_same_share_a_prefill(model, request, monkeypatch):
    """What is fed, in rows; and nobody's answer depends on who shares the prefill."""
    lm, fed, real = request.getfixturevalue(model), [], protocol.feed

    def feed(lm, cache, tokens, rows, bounds):
        fed.append(rows)
        real(lm, cache, tokens, rows, bounds)

    monkeypatch.setattr(protocol, "feed", feed)
    admitted = {"admission": {"method": "local_attention", "sinks": 4}}
    quest = {"selection": {"method": "quest", "local": 8}}
    methods = {
        "alone": admitted,
        "both": admitted | quest | {"over": {"selection": {"budget": [24, 2000]}}},
    }
    made = arms_of(methods, [0.2, 0.5], "methods", lm)
    got = pd.DataFrame(evaluate(lm, [example(sentences=12)], made, score, BASE))
    assert fed == [2, 2] and got["ok"].all()  # two kept fractions: alone, and with all selections
    assert answers(got[got["method"] == "both@budget=2000"]) == answers(got[got["method"] == "alone"])


def test_what_a_head_may_hold_beside_what_it_holds():
    """A window of two and a gate that admits positions 0 and 3 of six; what is asked for begins at ``youngest``."""
    cases = [
        ([0, 3, 4, 5], 0, False),
        ([0, 3, 4, 5, EMPTY], 0, False),
        ([3, 4, 5], 0, True),  # it lacks one
        ([3, 4, 5], 4, False),  # it was evicted
        ([0, 3, 5], 4, True),  # but not of the youngest
        ([0, 2, 3, 4, 5], 4, True),  # it was refused
        ([3, 0, 4, 5], 0, True),
        ([0, 3, 3, 4, 5], 0, True),
        ([0, 3, 4, 5, 6], 0, True),
    ]
    for held, youngest, wrong in cases:
        layer = SimpleNamespace(
            positions=torch.tensor([[[0, 3, 4, 5, EMPTY], [*held, *[EMPTY] * (5 - len(held))]]]),
            decisions=[torch.tensor([1, 0, 0, 1, 0, 0]).bool().expand(1, 2, 6)],
            windows=torch.tensor([[[2]]]),
        )
        assert protocol._wrongly_held(layer, torch.tensor([[[youngest]]]), 6).tolist() == [wrong], held
