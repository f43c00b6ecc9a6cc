"""GateSight's observations: every formula of the analyses against loops over the same labels."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from synthetic_labels import GEOMETRY, LM, RECIPE, corpus, document

from kvrepro.analysis.cells import GROUPS, cell_rows, decile_rates, decile_rows
from kvrepro.analysis.dynamics import dynamics_rows, jaccard, static_rows, variance_shares
from kvrepro.analysis.lengths import length_rows
from kvrepro.analysis.memory import SlowHeads, half_lives, slow_heads, static_half_lives
from kvrepro.analysis.names import LENGTH_PREDICTORS
from kvrepro.analysis.predictors import untrained
from kvrepro.analysis.ranking import ranking
from kvrepro.analysis.shape import parameters, shape, shape_rows
from kvrepro.analysis.tidy import every
from kvrepro.analysis.windows import window_rows
from kvrepro.errors import InputError
from kvrepro.estimators.features import features
from kvrepro.models.geometry import Geometry
from kvrepro.results import SCHEMA
from kvrepro.training.estimators import held_out, initial, train

DOCUMENTS = 12


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    return [
        corpus(folder, name, [document(seed + i, 60 + 7 * i) for i in range(DOCUMENTS)])
        for name, seed in (("prose", 0), ("code", 100))
    ]


@pytest.fixture(scope="module")
def dynamics(labelled):
    rows = dynamics_rows(labelled, 1, (30, 560), "quick")
    SCHEMA.validate(rows)
    return rows.assign(at=rows["options"].map(json.loads))


def part(rows, experiment, **where):
    found = rows[rows["experiment"] == experiment]
    for key, value in where.items():
        found = found[found[key] == value]
    return found


# Observation 1


def test_every_tenth_document_counts_over_all_corpora(labelled):
    assert [(name, i) for name, i, _ in every(labelled, 5)] == [
        ("prose", 0),
        ("prose", 5),
        ("prose", 10),
        ("code", 3),
        ("code", 8),
    ]
    with pytest.raises(InputError, match="at least 1"):
        list(every(labelled, 0))


def test_half_lives_of_documents_and_their_median(dynamics, labelled):
    measured = part(dynamics, "half_lives", method="measured", task="code", item=4)
    assert len(measured) == 7 * 3
    row = measured[measured["at"] == {"layer": 6, "head": 2}].iloc[0]
    g = labelled[1][4].signals[4, :, 2, 1].tolist()  # layer 6 is the fifth GDN layer
    assert row["value"] == pytest.approx(math.log(0.5) / (sum(g) / len(g)), rel=1e-6)
    median = part(dynamics, "half_lives", method="median")
    values = sorted(x[4, 2].item() for x in half_lives(labelled))
    assert median[median["at"] == {"layer": 6, "head": 2}]["value"].item() == values[(len(values) - 1) // 2]


def test_static_half_lives_come_from_the_weights(tiny_hybrid):
    rows = static_rows(tiny_hybrid, "quick")
    SCHEMA.validate(rows)
    found = {tuple(json.loads(o).values()): v for o, v in zip(rows["options"], rows["value"], strict=True)}
    layer = tiny_hybrid.model.model.layers[5].linear_attn
    rate = math.exp(layer.A_log[1].item()) * math.log1p(math.exp(layer.dt_bias[1].item()))
    assert found[5, 1] == pytest.approx(math.log(2) / rate, rel=1e-5)
    assert len(found) == static_half_lives(tiny_hybrid).numel()


def test_pairs_of_documents_are_disjoint_and_correlate_as_scipy_says(dynamics, labelled):
    order = torch.randperm(2 * DOCUMENTS, generator=torch.Generator().manual_seed(0)).tolist()
    pairs = list(zip(order[:DOCUMENTS], order[DOCUMENTS:], strict=True))
    assert len(set(order)) == 2 * len(pairs)
    lives = half_lives(labelled).flatten(1)
    writes = [
        [(doc.signals[k, :, h, 0] * doc.signals[k, :, h, 2]).mean().item() for k in range(7) for h in range(3)]
        for c in labelled
        for doc in c
    ]
    for method, values in (("half_life", lives.tolist()), ("write", writes)):
        found = part(dynamics, "order_stability", method=method).sort_values("item")["value"]
        expected = [spearmanr(values[a], values[b]).statistic for a, b in pairs]
        assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_slow_set_of_a_document_against_that_of_all(dynamics, labelled):
    median = slow_heads(labelled, 560).median
    life = half_lives(labelled)[DOCUMENTS + 2]
    own = {(k, h) for k in range(7) for h in range(3) if life[k, h] >= 560}
    all_ = {(k, h) for k in range(7) for h in range(3) if median[k, h] >= 560}
    assert own != all_ and own & all_
    rows = part(dynamics, "slow_set", task="code", item=2)
    value = rows[rows["at"] == {"threshold": 560}]["value"].item()
    assert value == pytest.approx(len(own & all_) / len(own | all_))
    none = torch.zeros(3, dtype=torch.bool)
    assert math.isnan(jaccard(none, none)) and jaccard(none, ~none) == 0


def test_variance_of_the_write_against_a_loop(dynamics, labelled):
    write = (labelled[0][0].signals[3, :, :, 0] * labelled[0][0].signals[3, :, :, 2]).double().numpy()
    x = np.log(write)
    total = sum((x[i, h] - x.mean()) ** 2 for i in range(60) for h in range(3))
    head = 60 * sum((x[:, h].mean() - x.mean()) ** 2 for h in range(3))
    token = 3 * sum((x[i].mean() - x.mean()) ** 2 for i in range(60))
    rest = sum((x[i, h] - x[i].mean() - x[:, h].mean() + x.mean()) ** 2 for i in range(60) for h in range(3))
    assert head + token + rest == pytest.approx(total)
    rows = part(dynamics, "write_variance", task="prose", item=0)
    rows = rows[rows["at"] == {"layer": 5}].set_index("method")["value"]
    expected = {"head": head / total, "token": token / total, "remainder": rest / total}
    assert rows.to_dict() == pytest.approx(expected, rel=1e-5)


def test_variance_of_a_pure_head_effect_and_of_a_closed_gate():
    pure = torch.tensor([1.0, 2.0, 4.0]).double().expand(1, 5, 3)
    torch.testing.assert_close(variance_shares(pure), torch.tensor([[1.0, 0, 0]]).double())
    gate = torch.ones(1, 4, 2, dtype=torch.float64)
    gate[0, 2, 1] = 0  # a gate that half precision rounded to zero
    assert torch.isfinite(variance_shares(gate)).all()


def test_slow_heads_write_less_by_layer(dynamics, labelled):
    doc = labelled[1][7]
    life = half_lives(labelled)[DOCUMENTS + 7]
    mean = (doc.signals[..., 0] * doc.signals[..., 2]).mean(1)
    rows = part(dynamics, "slow_heads_write", task="code", item=7)
    value = rows[rows["at"] == {"layer": 2}]["value"].item()
    assert value == pytest.approx(spearmanr(life[1], mean[1]).statistic)


# Observations 2 and 3


@pytest.mark.parametrize("n", [40, 47, 97])
def test_decile_rates_against_a_loop(n):
    g = torch.Generator().manual_seed(n)
    signal, utility = (torch.rand(n, generator=g) * 30).round(), torch.rand(2, n, generator=g)
    found = decile_rates(signal, utility)
    k = n // 10
    order = sorted(range(n), key=lambda i: (signal[i].item(), -i))  # weakest first, of a tie the younger
    start = 0
    for decile in range(10):
        size = k + (decile < n % 10)
        members = order[start : start + size]
        start += size
        for end, sign in (("top", -1), ("bottom", 1)):
            rate = 0.0
            for h in range(2):
                chosen = sorted(range(n), key=lambda i, h=h, sign=sign: sign * utility[h, i].item())[:k]
                rate += len(set(members) & set(chosen)) / size / 2
            assert found[end][decile].item() == pytest.approx(rate)
    overlap = ranking(signal.expand(1, 2, n), utility)["overlap@10"].mean()
    assert found["top"][9].item() == pytest.approx(overlap.item())


def test_decile_rows_average_the_layers(labelled):
    slow = slow_heads(labelled, 100)
    rows = decile_rows(labelled, GEOMETRY, slow, RECIPE.window, "quick")
    SCHEMA.validate(rows)
    assert len(rows) == 2 * DOCUMENTS * 10 * 2
    doc = labelled[0][3]
    expected = [
        decile_rates(untrained(doc, GEOMETRY, x, slow, RECIPE.window)["write_slow"], doc.utility[a])["bottom"][0].item()
        for a, x in enumerate(GEOMETRY.attention_layers)
    ]
    row = rows[(rows["task"] == "prose") & (rows["item"] == 3) & (rows["metric"] == "bottom")].iloc[0]
    assert json.loads(row["options"]) == {"decile": 1} and row["value"] == pytest.approx(sum(expected) / 3)


def test_a_document_of_fewer_than_ten_tokens_has_empty_deciles(tmp_path):
    short = [corpus(tmp_path, "short", [document(1, 6), document(2, 60)])]
    rows = decile_rows(short, GEOMETRY, slow_heads(short, 100), RECIPE.window, "quick")
    assert rows.loc[rows["item"] == 0, "value"].isna().sum() == 2 * 4
    assert not rows.loc[rows["item"] == 1, "value"].isna().any()


def test_cells_and_layers_against_scipy(labelled):
    rows = cell_rows(labelled, GEOMETRY, 3, "quick")
    SCHEMA.validate(rows)
    rows = rows.assign(at=rows["options"].map(json.loads))
    cells = part(rows, "cells")
    assert len(cells) == GROUPS * (1 + 3 + 3) * 3 and len(part(rows, "layer_writes")) == GROUPS * (1 + 3 + 7)
    documents = [doc for c in labelled for doc in c]
    group = [doc for place, doc in enumerate(documents) if place % GROUPS == 1]
    assert len(group) == 2  # 24 documents in 20 groups

    def rho(signal, number):
        return [spearmanr(signal(doc), doc.utility[number, h]).statistic for doc in group for h in range(2)]

    cell = cells[(cells["at"] == {"layer": 9, "gdn_layer": 7, "head": 1}) & (cells["item"] == 1)]["value"].item()
    assert cell == pytest.approx(np.mean(rho(lambda d: d.signals[5, :, 1, 0] * d.signals[5, :, 1, 2], 2)), abs=1e-6)
    layers = part(rows, "layer_writes", item=1)
    outside = layers[layers["at"] == {"layer": 9, "gdn_layer": 0, "in_window": False}]["value"].item()
    expected = np.mean(rho(lambda d: (d.signals[0, ..., 0].double() * d.signals[0, ..., 2].double()).mean(1), 2))
    assert outside == pytest.approx(expected, abs=1e-6)
    assert not (layers["at"] == {"layer": 1, "gdn_layer": 2, "in_window": True}).any()  # it comes after layer 1


# Table 6


def test_rows_by_length_use_the_given_slow_set_and_estimators(labelled, tmp_path):
    estimators = train(labelled, GEOMETRY, dataclasses.replace(RECIPE, hidden=4, epochs=1))
    longer = [corpus(tmp_path, "vt", [document(9, 150), document(10, 170)])]
    slow = SlowHeads(torch.arange(21.0).view(7, 3), threshold=19)
    rows = length_rows("2K", longer, 1, estimators, slow, "quick")
    SCHEMA.validate(rows)
    assert len(rows) == 2 * 3 * len(LENGTH_PREDICTORS) * 2 and set(rows["method"]) == set(LENGTH_PREDICTORS)
    doc = longer[0][1]
    scores = {
        "write_slow": (doc.signals[6, :, 1:, 0] * doc.signals[6, :, 1:, 2]).mean(1).expand(2, -1),
        "mlp": estimators.score(doc.signals)[2],
    }
    for name, score in scores.items():
        expected = np.mean([spearmanr(score[h], doc.utility[2, h]).statistic for h in range(2)])
        mine = rows[(rows["method"] == name) & (rows["item"] == 1) & (rows["metric"] == "spearman")]
        options = mine["options"].map(json.loads)
        assert mine[options == {"layer": 9, "set": "2K"}]["value"].item() == pytest.approx(expected, abs=1e-6)
    assert len(length_rows("1K", labelled, 10, estimators, slow, "quick")["item"].unique()) == 3


def test_labels_of_another_model_are_refused(labelled, tmp_path):
    estimators = train(labelled, GEOMETRY, dataclasses.replace(RECIPE, hidden=2, epochs=1))
    other = replace(LM, fingerprint="other")
    with pytest.raises(InputError, match="do not fit the estimators"):
        length_rows(
            "2K", [corpus(tmp_path, "x", [document(1, 50)], other)], 1, estimators, slow_heads(labelled, 9), "q"
        )


# Table 7 and the shape


def test_windows_are_compared_on_documents_they_were_not_trained_on(labelled):
    recipe = dataclasses.replace(RECIPE, hidden=4, epochs=1)
    trained = {w: held_out(labelled, GEOMETRY, dataclasses.replace(recipe, window=w), names=("mlp",)) for w in (2, 6)}
    assert set(trained[2]["code"]) == {"mlp"}
    rows = window_rows(labelled, trained, GEOMETRY, recipe.hidden, "quick")
    SCHEMA.validate(rows)
    doc = labelled[1][5]
    predicted = trained[2]["code"]["mlp"].predict(doc.signals)
    expected = np.mean([spearmanr(predicted[a, h], doc.utility[a, h]).statistic for a in range(3) for h in range(2)])
    mine = rows[(rows["task"] == "code") & (rows["item"] == 5) & (rows["metric"] == "spearman")]
    assert mine.set_index("options")["value"]['{"window": 2}'] == pytest.approx(expected, abs=1e-6)
    counts = rows[rows["item"] == 0].set_index(["options", "metric"])["value"]
    assert counts['{"window": 6}', "inputs"] == features(doc.signals, GEOMETRY, 9, 6).shape[1] == 57
    with pytest.raises(InputError, match="without corpus 'code'"):
        window_rows(labelled, {2: {"prose": trained[2]["prose"]}}, GEOMETRY, 4, "quick")


def test_parameters_are_those_of_the_networks():
    for window in (1, 6):
        heads = initial(GEOMETRY, dataclasses.replace(RECIPE, window=window, hidden=5))
        used = sum(int((w != 0).sum()) for w in (heads.w1, heads.b1, heads.w2, heads.b2))  # padding is zero
        assert parameters(GEOMETRY, window, 5) == used


def test_the_papers_shape():
    """§1, §2, §4.1 and Table 7: 64 layers, every fourth one attention, 48 GDN heads of 128 dimensions."""
    attention = tuple(range(3, 64, 4))
    paper = Geometry(
        "qwen3_5", 64, attention, tuple(i for i in range(64) if i not in attention), 24, 4, 256, 64, 48, 128, 5120,
        248320, True, True, 262144,
    )  # fmt: skip
    found = shape(paper, 6, 64)
    assert (found["networks"], found["inputs"], found["inputs_first_layer"]) == (64, 867, 435)
    assert found["cache_per_token"] == 64 * 1024 and found["pyramid_least"] == 4
    assert found["state"] / found["cache_per_token"] == pytest.approx(2400, rel=0.05)
    assert 100_000 * found["cache_per_token"] / found["state"] == pytest.approx(42, rel=0.05)
    counts = [parameters(paper, w, 64) / 1e6 for w in (3, 6, 9, 12)]
    assert counts == pytest.approx([1.8, 3.4, 5.0, 6.4], abs=0.06)
    SCHEMA.validate(shape_rows(paper, 6, 64, "Qwen3.8-27B", "paper"))
