"""Gate analyses of GateSight Appendix D on a tiny model, against loops and against transformers' own attention."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from synthetic_labels import RECIPE

from kvrepro.analysis import gate_statistics
from kvrepro.analysis.budgets import HeadBudget, PowerBudget, budget_arms, budget_rows, closed_layers
from kvrepro.analysis.closing import closed, closing_rows, drawn, lowest, next_token_accuracy, whole
from kvrepro.analysis.gated_scores import ranking_rows, received
from kvrepro.benchmarks.example import Example, Question
from kvrepro.errors import InputError
from kvrepro.estimators.mlp import Estimators
from kvrepro.methods import eviction
from kvrepro.models.attention import observing
from kvrepro.models.capture import group_gates, output_gates, prefill
from kvrepro.results import ANSWERS, SCHEMA
from kvrepro.training.estimators import initial


@pytest.fixture(scope="module")
def texts():
    g = torch.Generator().manual_seed(1)
    return [torch.randint(1, 320, (n,), generator=g) for n in (40, 25, 33)]


@pytest.fixture(scope="module")
def files(tiny_hybrid, texts, tmp_path_factory):
    """Untrained estimators and the gate statistics of the tiny model."""
    folder, lm = tmp_path_factory.mktemp("gates"), tiny_hybrid
    recipe = dataclasses.replace(RECIPE, hidden=4)
    gates = torch.tensor([0.2, 0.05])
    made = Estimators(
        initial(lm.geometry, recipe), gates, lm.geometry, lm.fingerprint, lm.name, ["a"], dataclasses.asdict(recipe)
    )
    made.save(folder / "estimators.safetensors")
    gate_statistics.measure(lm, texts).save(folder / "gates.safetensors", lm)
    return {"estimators": str(folder / "estimators.safetensors"), "gates": str(folder / "gates.safetensors")}


# Mean gates


def test_mean_gates_are_over_all_tokens(tiny_hybrid, texts, files):
    parents = [prefill(tiny_hybrid, x) for x in texts]
    found = gate_statistics.load(files["gates"], tiny_hybrid)
    tokens = sum(len(x) for x in texts)
    expected = sum(p.output_gates[1][3].sum().item() for p in parents) / tokens
    assert found.query_heads[1, 3].item() == pytest.approx(expected, rel=1e-5)
    largest = sum(p.output_gates[0][2:4].amax(0).sum().item() for p in parents) / tokens  # KV head 1 of two
    assert found.kv_heads[0, 1].item() == pytest.approx(largest, rel=1e-5)
    torch.testing.assert_close(gate_statistics.measure(tiny_hybrid, texts[:1]).kv_heads, group_gates(parents[0]))


def test_gates_need_a_gate_documents_and_their_own_model(tiny_hybrid, tiny_dense, texts, files):
    with pytest.raises(InputError, match="no attention output gate"):
        gate_statistics.measure(tiny_dense, texts)
    with pytest.raises(InputError, match="no documents"):
        gate_statistics.measure(tiny_hybrid, [])
    other = SimpleNamespace(fingerprint="other", geometry=tiny_hybrid.geometry)
    with pytest.raises(InputError, match="another model"):
        gate_statistics.load(files["gates"], other)


# Closing


def test_closing_is_a_gate_of_zero(tiny_hybrid, texts):
    """Against the model with the gate's own projection set to minus infinity, head by head."""
    lm, heads = tiny_hybrid, {3: [1, 2], 7: [0]}
    ids = texts[0][None]
    plain = lm.model(input_ids=ids).logits
    with closed(lm, heads):
        found = lm.model(input_ids=ids).logits
    handles = []
    for layer, chosen in heads.items():

        def shut(_, __, out, chosen=chosen):
            out = out.unflatten(-1, (4, 2, 32)).clone()
            out[..., chosen, 1, :] = -torch.inf  # of query and gate, the gate
            return out.flatten(-3)

        handles.append(lm.model.model.layers[layer].self_attn.q_proj.register_forward_hook(shut))
    expected = lm.model(input_ids=ids).logits
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, plain)
    torch.testing.assert_close(lm.model(input_ids=ids).logits, plain)  # nothing stays closed


def test_only_attention_layers_can_be_closed(tiny_hybrid):
    with pytest.raises(InputError, match=r"layer 2 of .* no attention layer"), closed(tiny_hybrid, {2: [0]}):
        pass


def test_lowest_and_random_heads():
    gates = torch.tensor([[0.5, 0.1, 0.4, 0.9], [0.2, 0.3, 0.05, 0.6]])
    assert lowest(gates, 3, (3, 7)) == {3: [1], 7: [2, 0]}
    many = [drawn((2, 4), 3, (3, 7), seed) for seed in range(40)]
    assert all(sum(map(len, heads.values())) == 3 for heads in many)
    assert {(layer, h) for heads in many for layer in heads for h in heads[layer]} == {
        (x, h) for x in (3, 7) for h in range(4)
    }
    assert drawn((2, 4), 3, (3, 7), 5) == many[5]


def test_next_token_accuracy_against_a_loop(tiny_hybrid, texts):
    right = 0
    for t in range(1, len(texts[1])):
        logits = tiny_hybrid.model(input_ids=texts[1][None, :t]).logits[0, -1]
        right += int(logits.argmax() == texts[1][t])
    assert next_token_accuracy(tiny_hybrid, texts[1]) == pytest.approx(right / (len(texts[1]) - 1))


def test_closing_rows(tiny_hybrid, texts, files):
    gates = gate_statistics.load(files["gates"], tiny_hybrid).query_heads
    rows = closing_rows(tiny_hybrid, {"a": texts[:2], "b": texts[2:]}, gates, 0.25, 2, "quick", seed=4)
    SCHEMA.validate(rows)
    assert rows.groupby("method").size().to_dict() == {"lowest": 3, "open": 3, "random": 6}
    assert set(rows.loc[rows["method"] == "lowest", "options"]) == {json.dumps({"heads": 2})}
    with closed(tiny_hybrid, drawn((2, 4), 2, (3, 7), 5)):
        expected = next_token_accuracy(tiny_hybrid, texts[2])
    mine = rows[(rows["options"] == json.dumps({"heads": 2, "draw": 1})) & (rows["task"] == "b")]
    assert mine["value"].item() == expected
    for share in (0.01, 1.0):
        with pytest.raises(InputError, match="some but not all"):
            closing_rows(tiny_hybrid, {"a": texts}, gates, share, 1, "quick")


def test_layers_are_closed_at_the_papers_depth():
    def layers(*numbers):
        return closed_layers(SimpleNamespace(attention_layers=numbers))

    assert layers(*range(3, 64, 4)) == [(3, 7, 11), (3, 7, 11, 23)]
    assert layers(3, 7, 11) == [(3,), (3, 7)]
    assert layers(3, 7) == [(3,), (3, 7)]
    assert layers(3) == [(3,)]


# Gated scores


def test_received_attention_against_a_loop(tiny_hybrid, texts):
    lm, tokens, rows = tiny_hybrid, texts[1], 6
    n = len(tokens)
    seen = {}

    def look(module, query, key, value, _):
        seen[module.layer_idx] = query[0].double(), key[0].double(), value[0].double()

    with observing(look), output_gates(lm) as gates, torch.no_grad():
        lm.model(input_ids=tokens[None])
    found = received(lm, tokens, rows)
    for number, layer in enumerate((3, 7)):
        q, k, v = seen[layer]
        module = lm.model.model.layers[layer].self_attn
        weight = module.o_proj.weight.detach().double().view(64, 4, 32)
        for kv in range(2):
            for i in range(n):
                best = {"open": 0.0, "gated": 0.0}
                for j in (2 * kv, 2 * kv + 1):
                    for t in range(n - rows, n):
                        if i > t:
                            continue
                        a = torch.softmax(q[j, t] @ k[kv, : t + 1].T * module.scaling, 0)[i]
                        gate = gates[layer][0, t, j].double()
                        for name, value in (("open", v[kv, i]), ("gated", gate * v[kv, i])):
                            best[name] = max(best[name], (a * (weight[:, j] @ value).norm()).item())
                for name, value in best.items():
                    assert found[name][number][kv, i].item() == pytest.approx(value, rel=1e-4, abs=1e-7)


def test_ranking_rows(tiny_hybrid, tiny_dense, texts):
    rows = ranking_rows(tiny_hybrid, {"a": texts[:2]}, 8, "quick")
    SCHEMA.validate(rows)
    scores = received(tiny_hybrid, texts[1], 8)
    expected = np.mean([spearmanr(scores["gated"][1][h], scores["open"][1][h]).statistic for h in range(2)])
    mine = rows[(rows["item"] == 1) & (rows["options"] == '{"layer": 7}')]["value"].item()
    assert mine == pytest.approx(expected) and len(rows) == 4
    with pytest.raises(InputError, match="no attention output gate"):
        received(tiny_dense, texts[0], 8)


# Budgets


def example(item: int) -> Example:
    filler = "The grass is green. The sky is blue. " * 6
    question = Question(" What is it? It is", ("blue",), 24, " It is")
    return Example("ruler", "vt", item, 0, "Read. ", f"{filler}{item}", (question,))


def test_budgets_weigh_layers_and_heads_as_asked(tiny_hybrid, files):
    parent = prefill(tiny_hybrid, torch.arange(1, 60))
    half = PowerBudget(files["estimators"], 0.5)
    half.prepare(tiny_hybrid)
    torch.testing.assert_close(half.layer_weights(parent), torch.tensor([0.2, 0.05]).sqrt())
    per_head = HeadBudget(files["estimators"], files["gates"])
    per_head.prepare(tiny_hybrid)
    torch.testing.assert_close(
        per_head.layer_weights(parent), gate_statistics.load(files["gates"], tiny_hybrid).kv_heads
    )
    assert "received_attention" not in eviction.names()


def test_rows_under_other_budgets_and_closed_layers(tiny_hybrid, files):
    arms = budget_arms(tiny_hybrid, files["estimators"], files["gates"], (0.3, 0.6), rows=8)
    base = {"paper": "gatesight", "tier": "quick"}
    rows = list(budget_rows(tiny_hybrid, [example(0), example(1)], arms, lambda *_: 1.0, base))
    frame = ANSWERS.validate(pd.DataFrame(rows))
    assert frame["ok"].all()
    budgets = frame[(frame["experiment"] == "budgets") & (frame["budget"] < 1)]
    assert len(budgets) == 8 * 2 * 2
    held = budgets.groupby(["item", "budget"])["kept_entries"].nunique()
    assert (held == 1).all()  # whatever the rule, the same total
    options = budgets.set_index("method")["options"].map(json.loads)
    assert options["exponent_1.5"].iloc[0] == {
        "eviction": {"method": "gatesight", "exponent": 1.5},
        "allocation": "gate_proportional",
    }
    assert options["per_head"].iloc[0]["allocation"] == "gate_proportional_per_head"
    shut = frame[frame["experiment"] == "closed_layers"]
    assert set(shut["method"]) == {"dense", "without 3", "without 3 7"} and len(shut) == 3 * 2
    own = {"experiment": "long_budgets", "closing": False}
    assert {r["experiment"] for r in budget_rows(tiny_hybrid, [example(0)], [], lambda *_: 1.0, base, **own)} == {
        "long_budgets"
    }
    with closed(tiny_hybrid, whole(tiny_hybrid, [3, 7])):
        again = list(budget_rows(tiny_hybrid, [example(1)], [], lambda *_: 1.0, base))
    mine = shut[(shut["method"] == "without 3 7") & (shut["item"] == 1)]["prediction"].item()
    dense = shut[(shut["method"] == "dense") & (shut["item"] == 1)]["prediction"].item()
    assert mine == again[0]["prediction"] != dense
