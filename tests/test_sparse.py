"""Qwen Sparse Attention: what the suite computes on caches with an index, against transformers' own code."""

from __future__ import annotations

import copy
from dataclasses import replace

import pandas as pd
import pytest
import sparse_tools
import torch
from sparse_tools import BLOCK, BUDGET
from synthetic_labels import RECIPE
from transformers import DynamicCache

from kvrepro import config
from kvrepro.analysis import gate_statistics
from kvrepro.analysis.budgets import budget_arms, budget_rows
from kvrepro.analysis.gated_scores import received
from kvrepro.analysis.shape import shape_rows
from kvrepro.benchmarks.example import Example, Question
from kvrepro.cache.fork import fork
from kvrepro.claims.evidence import Evidence
from kvrepro.claims.queries import ask
from kvrepro.errors import InputError
from kvrepro.evaluate import protocol
from kvrepro.evaluate.arms import Arm
from kvrepro.evaluate.arms import arms as arms_of
from kvrepro.evaluate.protocol import evaluate
from kvrepro.labels.corpus import LabelledCorpus, LabelSettings, label_corpus, label_documents
from kvrepro.labels.rollout import Sampling, rollout
from kvrepro.labels.utility import ContinuationStates, utility
from kvrepro.methods import eviction
from kvrepro.models import attention, registry
from kvrepro.models.capture import decoder_layers, prefill
from kvrepro.models.geometry import Geometry, geometry
from kvrepro.models.loading import load
from kvrepro.results import ANSWERS
from kvrepro.training.estimators import train

STEPS = 9


@pytest.fixture
def stock(tiny_sparse):
    """The model under transformers' own code, index and all."""
    tiny_sparse.model.set_attn_implementation("sdpa")
    yield tiny_sparse
    tiny_sparse.model.set_attn_implementation(attention.NAME)


@torch.no_grad()
def logits(lm, ids, cache=None, start=0):
    rows = ids.expand(1 if ids.ndim == 1 else len(ids), -1)
    positions = torch.arange(start, start + rows.shape[1]).expand(len(rows), -1)
    return lm.model(input_ids=rows, position_ids=positions, past_key_values=cache, use_cache=cache is not None).logits


def masks(parent, kept):
    """The same list for both heads of every layer."""
    return [kept.expand(parent.geometry.kv_heads, -1)] * len(parent.geometry.attention_layers)


@pytest.mark.parametrize("n", [1, 3, 100, attention.CHUNK + 43])
def test_a_prefill_is_that_of_transformers(stock, n):
    tokens = torch.randint(1, 320, (n,), generator=torch.Generator().manual_seed(7))
    cache = DynamicCache(config=stock.model.config)
    expected = logits(stock, tokens, cache)
    stock.model.set_attn_implementation(attention.NAME)
    parent = prefill(stock, tokens)
    torch.testing.assert_close(parent.next_logits, expected[0, -1], rtol=0, atol=1e-4)
    for number, i in enumerate(stock.geometry.attention_layers):
        torch.testing.assert_close(parent.keys[number], cache.layers[i].keys[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(parent.index_keys[number], cache.layers[i].indexer_keys[0], rtol=0, atol=1e-4)
    assert all(reads.sum(-1).max() <= BUDGET + BLOCK - 1 for reads in parent.reads)


def compacted(lm, parent, kept):
    """transformers' own cache of what is kept, of one list for all layers; its own code regroups it."""
    cache, where = copy.deepcopy(parent.cache), kept.nonzero()[:, 0]
    for i in parent.geometry.attention_layers:
        layer = cache.layers[i]
        layer.keys, layer.values = layer.keys[:, :, where], layer.values[:, :, where]
        layer.indexer_keys = layer.indexer_keys[:, where]
    first = cache.layers[parent.geometry.attention_layers[0]]
    first.indexer_position_ids = first.indexer_position_ids[..., where]
    return cache


def continued(lm, caches, n, fed):
    """Logits of a question of several tokens and of single tokens after it."""
    parts = [logits(lm, fed[:, :STEPS], caches, n)]
    return torch.cat(parts + [logits(lm, fed[:, i : i + 1], caches, n + i) for i in range(STEPS, fed.shape[1])], 1)


KEPT = {
    "all": lambda n: torch.ones(n, dtype=torch.bool),
    "blocks": lambda n: torch.arange(n) % 3 != 1,
    "few": lambda n: torch.arange(n) % 9 == 2,
    "no blocks": lambda n: torch.arange(n) % 50 == 7,
}


@pytest.mark.parametrize("n", [100, 97, 95, 94])
def test_children_answer_as_transformers_would_from_what_they_keep(stock, tokens, n):
    stock.model.set_attn_implementation(attention.NAME)
    parent = prefill(stock, tokens[:n])
    kept = [choose(n) for choose in KEPT.values()]
    session = fork(stock, parent, [masks(parent, each) for each in kept])
    fed = torch.randint(1, 320, (len(kept), STEPS + 11), generator=torch.Generator().manual_seed(1))
    found = continued(stock, session.cache, n, fed)
    session.rewind()
    again = continued(stock, session.cache, n, fed)
    stock.model.set_attn_implementation("sdpa")
    for row, each in enumerate(kept):
        expected = continued(stock, compacted(stock, parent, each), n, fed[row : row + 1])[0]
        # rounding grows from token to token; another selection changes logits by about one
        for answer in (found, again):
            torch.testing.assert_close(answer[row], expected, rtol=0, atol=0.02)


FEW = Sampling(rollouts=3, rollout_tokens=7, temperature=1.0, top_p=0.95, top_k=20)


def selected_by_transformers(lm, whole):
    """What each token of a sequence reads in each attention layer, ``[n, n]``, by transformers' own indexer."""
    found, handles = {}, []
    for i in lm.geometry.attention_layers:
        indexer = decoder_layers(lm.model)[i].self_attn.indexer
        handles.append(indexer.register_forward_hook(lambda _, __, out, i=i: found.update({i: out[0, 0]})))
    logits(lm, whole)
    for handle in handles:
        handle.remove()
    causal = torch.ones(len(whole), len(whole), dtype=torch.bool).tril()
    return {i: mask & causal for i, mask in found.items()}


@pytest.fixture(scope="module")
def documents():
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(1, 320, (n,), generator=draw) for n in (46, 61, 28)]


@pytest.fixture(scope="module")
def rolled(tiny_sparse, documents):
    parents = [prefill(tiny_sparse, each) for each in documents]
    return parents, rollout(tiny_sparse, parents, FEW, [5, 6, 7], ["a", "b", "c"])


def test_continuations_read_what_transformers_selects(stock, documents, rolled):
    """Of documents of different lengths that decode as one batch, each row's own choice."""
    for document, parent, found in zip(documents, *rolled, strict=True):
        for m, drawn in enumerate(found.tokens):
            expected = selected_by_transformers(stock, torch.cat([document, torch.tensor(drawn)]))
            for number, i in enumerate(stock.geometry.attention_layers):
                rows, t = found.rows[number], len(drawn)
                assert torch.equal(rows.reads[m, :t, : parent.n + t], expected[i][parent.n :])


def removed_one_by_one(parent, rows, number, projection, scaling):
    """U of every entry by a loop over continuations, rows, heads and entries, in float64: the entry leaves the selected
    set of all query heads of its group, the set itself stays."""
    keys, values, group = parent.keys[number], parent.values[number], parent.geometry.group
    kv_heads, n, d = values.shape
    found = torch.zeros(len(rows.lengths), kv_heads, n, dtype=torch.float64)
    for m, length in enumerate(rows.lengths):
        for t in range(length):
            read = rows.reads[m, t].nonzero()[:, 0].tolist()
            for h in range(kv_heads):
                k = torch.cat([keys[h], rows.keys[m, h]]).double()
                v = torch.cat([values[h], rows.values[m, h]]).double()
                for i in (i for i in read if i < n):
                    rest, change = [j for j in read if j != i], 0
                    for j in range(h * group, (h + 1) * group):
                        logit = k @ rows.queries[m, j, t].double() * scaling
                        delta = logit[read].softmax(0) @ v[read] - logit[rest].softmax(0) @ v[rest]
                        change = change + projection[:, j * d : (j + 1) * d].double() @ delta
                    found[m, h, i] = max(found[m, h, i], change.norm())
    return found


def test_utility_is_removal_with_the_selected_set_held_fixed(tiny_sparse, rolled):
    never = 0
    for parent, found in zip(*rolled, strict=True):
        for number, i in enumerate(tiny_sparse.geometry.attention_layers):
            module = decoder_layers(tiny_sparse.model)[i].self_attn
            given = found.rows[number], module.o_proj.weight, module.scaling
            expected = removed_one_by_one(parent, given[0], number, *given[1:])
            closed = utility(parent.keys[number], parent.values[number], *given)
            assert (closed - expected).abs().max() <= 1.4e-5 * expected.max()
            unread = ~given[0].reads[..., : parent.n].any(1)
            assert (closed.transpose(0, 1)[:, unread] == 0).all()
            never += int(unread.sum())
    assert never


def test_labels_are_rebuilt_and_checked_under_the_selection(tiny_sparse, documents, monkeypatch):
    settings = LabelSettings(FEW, check_entries=5, batch=3, seed=0)
    found = label_documents(tiny_sparse, documents, settings, [5, 6, 7], ["a", "b", "c"])
    assert all(doc.checks["closed_form_error"] <= 1.4e-5 and doc.checks["module_error"] <= 1e-4 for doc in found)
    seen = ContinuationStates.hide
    monkeypatch.setattr(ContinuationStates, "hide", lambda self, *a: seen(replace(self, reads=None), *a))
    with pytest.raises(InputError, match="module_error"):  # all attention in the place of the selected
        label_documents(tiny_sparse, documents[:1], settings, [5], ["a"])


def example(item=0):
    return Example(
        "ruler",
        "niah_single_1",
        item,
        42 + item,
        "Remember this text.\n",
        " The grass is green. The sky is blue." * (12 + item),
        (Question("\nWhat is the number?", ("7",), 6), Question("\nWhat is blue?", ("sky",), 4)),
    )


def score(example, question, text):
    return float(any(r in text for r in question.references))


BASE = {"paper": "gatesight", "experiment": "ruler", "tier": "test"}
KEPT_FRACTIONS = (0.1, 0.3, 0.7, 0.97, 1.0)


def evaluated(lm, arms):
    got = pd.DataFrame(evaluate(lm, [example(0), example(1)], arms, score, BASE, together=200_000))
    ANSWERS.validate(got)
    return got


@pytest.fixture(scope="module")
def rows(tiny_sparse):
    made = {
        "random": (eviction.build("random"), "flat"),
        "keydiff": (eviction.build("keydiff"), "gate_proportional"),
        "snapkv": (eviction.build("snapkv"), "pyramid"),
        "kvzip": (eviction.build("kvzip", {"chunk": 60}), None),
    }
    made["kvzip"][0].prepare(tiny_sparse)
    return evaluated(
        tiny_sparse,
        [Arm(name, eviction=it, kept=k, allocation=rule) for name, (it, rule) in made.items() for k in KEPT_FRACTIONS],
    )


def test_every_row_passes_its_checks_and_all_kept_answers_as_transformers(rows):
    assert len(rows) == 2 * 2 * (2 + 4 * len(KEPT_FRACTIONS))
    assert rows["ok"].all(), rows[~rows["ok"]][["method", "budget", "failed_checks"]]
    whole = rows[rows["budget"] == 1.0]
    assert set(whole["method"]) == {"dense", "full", "random", "keydiff", "snapkv", "kvzip"}
    assert (whole.groupby(["item", "question"])["prediction"].nunique() == 1).all()
    pruned = rows[rows["budget"] == 0.1].merge(whole[whole["method"] == "dense"], on=["item", "question"])
    assert (pruned["prediction_x"] != pruned["prediction_y"]).any()


def test_a_row_holds_whole_blocks_near_its_budget(rows, tiny_sparse):
    g = tiny_sparse.geometry
    for row in rows[rows["budget"] < 1].itertuples():
        per_list = row.kept_entries / g.cache_rows
        wanted = row.protected + row.budget * (row.n_tokens - row.protected)
        assert per_list % BLOCK == 0 and abs(per_list - wanted) <= BLOCK / 2 + 0.5
        vectors = 2 * g.head_dim * g.kv_heads + g.index.head_dim / BLOCK  # an index key for every four entries
        assert row.bytes_held == per_list * len(g.attention_layers) * vectors * 4


def test_the_claims_on_its_budget_and_its_index_read_these_rows(rows, tiny_sparse):
    of = {"benchmark": "ruler", "method": "keydiff"}
    every = pd.concat([rows, shape_rows(tiny_sparse.geometry, 3, 8, "it", "test")])
    evidence = Evidence("it", every)
    assert ask(evidence, "index_keys", {**of, "kept": 0.1}).value == pytest.approx(1 / BLOCK)
    assert ask(evidence, "budget_error", of).value == 0
    more = Evidence("it", every.assign(kept_entries=every["kept_entries"] + 2))
    assert ask(more, "budget_error", of).value == 2


def broken(lm, monkeypatch, name, fault):
    real = getattr(protocol, name)
    monkeypatch.setattr(protocol, name, lambda *a: fault(real, *a))
    got = evaluated(lm, [Arm("random", eviction=eviction.build("random"), kept=0.3)])
    return set(got[got["method"] == "random"]["failed_checks"])


def one_more(real, ranks, counts, protected):
    return real(ranks, counts + 1, protected)


def heads_apart(real, lm, parent, kept):
    def swapped(mask):
        second = mask[1].clone()
        for other in (mask[1], ~mask[1]):
            second[other.nonzero()[-1, 0]] ^= True
        return torch.stack([mask[0], second])

    return real(lm, parent, [[mask if mask.all() else swapped(mask) for mask in child] for child in kept])


def room_left(real, lm, parent, kept):
    session = real(lm, parent, kept)
    session.attention[0].block_index.reserve(parent.n * 2)
    return session


@pytest.mark.parametrize(
    ("name", "fault", "marked"),
    [
        ("keep_top", one_more, "blocks,budget"),
        ("fork", heads_apart, "blocks"),
        ("fork", room_left, "compaction"),
    ],
)
def test_a_cache_that_is_not_regrouped_is_marked(tiny_sparse, monkeypatch, name, fault, marked):
    assert broken(tiny_sparse, monkeypatch, name, fault) == {marked}


def test_gatesight_ranks_a_layers_tokens_by_the_larger_prediction(tiny_sparse, documents, tmp_path):
    """From labels to answers; the budget of a layer follows its mean output gate on the label corpora."""
    lm, g = tiny_sparse, tiny_sparse.geometry
    settings, paths = LabelSettings(FEW, check_entries=2, batch=3, seed=0), [tmp_path / name for name in ("a", "b")]
    for path in paths:
        label_corpus(lm, path.name, documents, settings, path)
    labelled = [LabelledCorpus(path, lm.fingerprint, g.as_dict()) for path in paths]
    assert Geometry.from_dict(labelled[0].meta["geometry"]) == g
    trained = train(labelled, g, replace(RECIPE, hidden=8, epochs=2, positions=20))
    assert trained.layer_gates.shape == (2,)
    trained.layer_gates = torch.tensor([3.0, 1.0])
    trained.save(tmp_path / "estimators")
    made = arms_of(
        {"gatesight": {"eviction": "gatesight"}}, [0.3, 1.0], "m", lm, {"estimators": tmp_path / "estimators"}
    )
    assert evaluated(lm, made)["ok"].all()

    parent = prefill(lm, torch.cat(documents), protected=5)
    (arm, kept), *_ = protocol._plans(parent, made, "it")
    counts = [int(mask[0].sum()) for mask in kept]
    assert counts == [64, 24]  # 5 and 39 of 130 are 44 a layer; 8 hold the prefix, and 18 blocks go out as 3 : 1
    for score, mask, count in zip(arm.eviction.score(parent), kept, counts, strict=True):
        best = torch.maximum(score[0], score[1])[5:].topk(count - 5).indices + 5
        assert set(mask[0].nonzero()[:, 0].tolist()) == {*range(5), *best.tolist()} and torch.equal(mask[0], mask[1])


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ({"admission": {"method": "local_attention", "sinks": 4}}, "admission decides for each head"),
        ({"bounding": {"method": "snapkv", "budget": 300}}, "bounding evicts from each head"),
        ({"selection": {"method": "quest", "budget": 300}}, "selects itself what a query reads"),
        ({"eviction": "keydiff", "allocation": "gate_proportional_per_head"}, "gives each head its own number"),
    ],
)
def test_what_has_no_room_on_a_sparse_attention_is_one_sentence_before_a_job_starts(tiny_sparse, method, why):
    with pytest.raises(InputError, match=rf"m.it: does not run on .*{why}.*; leave one of them out"):
        arms_of({"it": method}, [0.5], "m", tiny_sparse)
    flash = {"experiments": {"gatesight": {"models": ["Qwen3.8-Flash-Next"], "methods": {"it": method}}}}
    with pytest.raises(InputError, match=rf"gatesight.methods.it: does not run on Qwen3.8-Flash-Next, since .*{why}"):
        config.load({"tier": "quick", **flash})


def test_a_sparse_model_of_the_hub_must_say_so(tiny_sparse_dir, monkeypatch):
    monkeypatch.setattr(registry, "entry", lambda name: {"hub": str(tiny_sparse_dir)})
    with pytest.raises(InputError, match=r"it has a sparse attention; add sparse: true"):
        load("it")


@pytest.mark.parametrize("field", ["indexer_budget", "indexer_head_dim"])
def test_an_index_without_its_settings_is_named(field):
    given = sparse_tools.config()
    setattr(given, field, None)
    with pytest.raises(InputError, match="complete its config"):
        geometry(given)


def test_the_gate_analyses_run_without_budgets_per_head(tiny_sparse, documents, tmp_path):
    """Received attention is over what was selected; a closed layer is closed for transformers' own attention too."""
    g = tiny_sparse.geometry
    train_input = tmp_path / "labels"
    label_corpus(tiny_sparse, "a", documents, LabelSettings(FEW, 2, 3, 0), train_input)
    trained = train([LabelledCorpus(train_input)], g, replace(RECIPE, hidden=8, epochs=1, positions=9))
    trained.save(tmp_path / "estimators")
    gate_statistics.measure(tiny_sparse, documents).save(tmp_path / "gates", tiny_sparse)
    arms = budget_arms(tiny_sparse, tmp_path / "estimators", tmp_path / "gates", [0.3], rows=8)
    names = {arm.name for arm in arms}
    assert "per_head" not in names and {"gate_proportional", "pyramid", "flat", "attention_gated"} < names
    got = pd.DataFrame(budget_rows(tiny_sparse, [example()], arms, score, BASE))
    assert got["ok"].all() and "without 3 7" in set(got["method"])
    unread = ~prefill(tiny_sparse, documents[1], query_window=8).reads[0].any(0)
    assert unread.any() and not received(tiny_sparse, documents[1], 8)["open"][0][:, unread].any()
