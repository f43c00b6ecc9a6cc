"""The protocol end to end on tiny models: rows, checks, and that a broken cache is marked."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

from kvrepro.benchmarks.example import Example, Question, render
from kvrepro.errors import InputError
from kvrepro.evaluate import protocol
from kvrepro.evaluate.arms import Arm, admission_arms, check_budgets, eviction_arms
from kvrepro.evaluate.protocol import evaluate
from kvrepro.methods import admission, eviction
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


def score(task, prediction, references):
    return float(any(r in prediction for r in references))


def arms():
    made = []
    for name in ("random", "keydiff", "snapkv"):
        method = eviction.build(name)
        made += [Arm(name, method, kept) for kept in (0.1, 0.5, 1.0)]
    return made


@pytest.fixture(scope="module")
def rows(tiny_hybrid):
    return pd.DataFrame(evaluate(tiny_hybrid, [example(0), example(1)], arms(), score, BASE, batch=4))


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
    assert options == {"allocation": "flat", "kernel": 7, "window": 32}


def test_a_gate_proportional_allocation_can_be_given_to_any_method(tiny_hybrid):
    class Gated(type(eviction.build("random"))):
        def layer_weights(self, prefill):
            return torch.tensor([1.0, 3.0])

    arm = Arm("gated", Gated(), 0.2, allocation="gate_proportional")
    got = pd.DataFrame(evaluate(tiny_hybrid, [example()], [arm], score, BASE))
    row = got[got["method"] == "gated"].iloc[0]
    assert row.ok and json.loads(row.options)["allocation"] == "gate_proportional"


def test_admission_goes_through_the_same_evaluation(tiny_dense):
    method = admission.build("local_attention", {"sinks": 4})
    got = pd.DataFrame(
        evaluate(tiny_dense, [example()], [Arm("local_attention", method, k) for k in (0.2, 1.0)], score, BASE)
    )
    ANSWERS.validate(got)
    local = got[(got["method"] == "local_attention") & (got["budget"] == 0.2)].iloc[0]
    assert local.ok and local.kept_entries == tiny_dense.geometry.cache_rows * round(0.2 * local.n_tokens)
    assert got["ok"].all(), "kept fraction 1.0 must answer like the dense model"


def test_a_cache_that_keeps_too_much_is_marked_and_left_out(tiny_hybrid, monkeypatch, tmp_path):
    real = protocol.keep_top

    def generous(scores, counts, protected, context):
        return real(scores, counts + 1, protected, context)

    monkeypatch.setattr(protocol, "keep_top", generous)
    got = pd.DataFrame(evaluate(tiny_hybrid, [example()], [Arm("random", eviction.build("random"), 0.5)], score, BASE))
    bad = got[got["method"] == "random"]
    assert (bad["failed_checks"] == "budget").all() and not bad["ok"].any()
    write_rows(got, tmp_path / "rows.parquet", {})
    assert "random" not in set(valid(read_rows(tmp_path / "rows.parquet"))["method"])


def marked(tiny_hybrid, kept=0.5):
    got = pd.DataFrame(evaluate(tiny_hybrid, [example()], [Arm("random", eviction.build("random"), kept)], score, BASE))
    return set(got[got["method"] == "random"]["failed_checks"])


def test_answers_at_wrong_positions_are_marked(tiny_hybrid, monkeypatch):
    real = protocol.answer
    monkeypatch.setattr(protocol, "answer", lambda lm, cache, start, *a, **k: real(lm, cache, start - 1, *a, **k))
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
    monkeypatch.setattr(protocol, "Arm", lambda name, method, kept: Arm(name, method, 0.5))  # no full child beside it
    assert "compaction" in next(iter(marked(tiny_hybrid)))


def test_a_score_that_is_not_finite_names_the_context(tiny_hybrid):
    class Broken(type(eviction.build("random"))):
        def score(self, prefill):
            return [s.fill_(float("nan")) for s in super().score(prefill)]

    with pytest.raises(InputError, match=r"ruler/niah_single_1 item 0.*broken.*not finite"):
        list(evaluate(tiny_hybrid, [example()], [Arm("broken", Broken(), 0.5)], score, BASE))


def test_a_context_shorter_than_its_prefix_is_refused(tiny_hybrid):
    empty = Example("ruler", "vt", 5, 1, "Remember this.", "", (Question("?", ("1",), 2),))
    with pytest.raises(InputError, match=r"ruler/vt item 5: the context has .* protected prefix"):
        list(evaluate(tiny_hybrid, [empty], [], score, BASE))


def test_budgets_are_checked_before_a_model_runs():
    with pytest.raises(InputError, match="keeps nothing"):
        check_budgets([Arm("random", eviction.build("random"), 0.001)], 120, 20)
    with pytest.raises(InputError, match="leaves no window"):
        check_budgets([Arm("local_attention", admission.build("local_attention"), 0.5)], 120, 20)


def test_arms_come_from_the_configs_tables(tiny_hybrid):
    table = {"snapkv": {"window": 16}, "keydiff_published": {"method": "keydiff", "anchor": "mean_of_normalised"}}
    made = eviction_arms(table, [0.1, 0.5], tiny_hybrid, {"estimators": "unused"})
    assert [(a.name, a.kept) for a in made] == [(n, k) for n in table for k in (0.1, 0.5)]
    assert made[0].method.window == 16 and made[2].method.name == "keydiff"
    with pytest.raises(InputError, match=r"eviction.snapvk: .*did you mean 'snapkv'"):
        eviction_arms({"snapvk": {}}, [0.1], tiny_hybrid, {})
    with pytest.raises(InputError, match=r"admission.local: .*'local_atention'"):
        admission_arms({"local": {"method": "local_atention"}}, [0.1])
