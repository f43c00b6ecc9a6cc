"""The ranking metrics, slow heads, and the rows of Table 5 and Figure 5."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from scipy.stats import spearmanr
from synthetic_labels import GEOMETRY, RECIPE, corpus, document

from kvrepro.analysis.memory import SlowHeads, half_lives, slow_heads, static_half_lives
from kvrepro.analysis.names import METRICS, PREDICTORS, SUMMARIES
from kvrepro.analysis.predictors import example_layer, example_rows, oracle_cells, predictor_rows, untrained
from kvrepro.analysis.ranking import ranking, spearman, top_count
from kvrepro.errors import InputError
from kvrepro.models.capture import prefill
from kvrepro.results import SCHEMA
from kvrepro.training.estimators import held_out

WINDOW = RECIPE.window


def test_metrics_by_hand():
    utility = torch.tensor([[9.0, 0, 1, 8, 0, 7, 2, 6, 0, 0]])
    predicted = torch.tensor([[[5.0, 9, 0, 8, 0, 7, 6, 0, 0, 0]]])  # its best four: 1, 3, 5, 6
    found = ranking(predicted, utility)
    assert set(found) == set(METRICS)
    for percent in (5, 10, 20):  # k = max(4, floor(k n)) = 4; the true four: 0, 3, 5, 7
        assert found[f"overlap@{percent}"].item() == 2 / 4
        assert found[f"coverage@{percent}"].item() == pytest.approx((0 + 8 + 7 + 2) / (9 + 8 + 7 + 6))
    assert found["spearman"].item() == pytest.approx(spearmanr(predicted[0, 0], utility[0]).statistic)


def test_metrics_against_a_loop():
    g = torch.Generator().manual_seed(0)
    utility, predicted = torch.rand(3, 97, generator=g), torch.rand(2, 3, 97, generator=g)
    predicted = (predicted * 20).round() / 20  # ties
    found = ranking(predicted, utility)
    for p in range(2):
        for h in range(3):
            rho = spearmanr(predicted[p, h], utility[h]).statistic
            assert found["spearman"][p, h].item() == pytest.approx(rho, abs=1e-12)
            for percent, k in ((5, 4), (10, 9), (20, 19)):
                mine = sorted(range(97), key=lambda i, p=p, h=h: (-predicted[p, h, i].item(), i))[:k]
                true = sorted(range(97), key=lambda i, h=h: -utility[h, i].item())[:k]
                share = len(set(mine) & set(true)) / k
                mass = sum(utility[h, i].item() for i in mine) / sum(utility[h, i].item() for i in true)
                assert found[f"overlap@{percent}"][p, h].item() == pytest.approx(share)
                assert found[f"coverage@{percent}"][p, h].item() == pytest.approx(mass)


def test_edges_of_the_metrics():
    assert [top_count(10, n) for n in (3, 20, 49, 50, 1000)] == [3, 4, 4, 5, 100]
    assert spearman(torch.ones(5), torch.arange(5.0)).item() == 0
    with pytest.raises(InputError, match="not finite"):
        ranking(torch.tensor([[[1.0, math.nan]]]), torch.ones(1, 2))
    with pytest.raises(InputError, match="not finite"):
        ranking(torch.ones(1, 1, 2), torch.tensor([[1.0, math.inf]]))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    return [
        corpus(folder, name, [document(seed + i, n) for i, n in enumerate((120, 90, 150))])
        for name, seed in (("prose", 0), ("code", 10))
    ]


def test_half_lives(labelled, tiny_hybrid):
    found = half_lives(labelled)
    assert found.shape == (6, 7, 3)
    mean = labelled[1][0].signals[4, :, 2, 1].mean().item()
    assert found[3, 4, 2].item() == pytest.approx(math.log(0.5) / mean, rel=1e-5)
    median = found[:, 4, 2].sort().values[2].item()
    slow = slow_heads(labelled, median)
    assert slow.median[4, 2].item() == median and slow.mask[4, 2]
    static = static_half_lives(tiny_hybrid)
    layer = tiny_hybrid.model.model.layers[4].linear_attn
    expected = math.log(2) / (layer.A_log[1].exp() * math.log1p(layer.dt_bias[1].exp()))
    assert static[3, 1].item() == pytest.approx(expected.item(), rel=1e-5)
    assert static.shape == prefill(tiny_hybrid, torch.arange(1, 9)).signals[:, 0, :, 0].shape


def test_a_window_without_a_slow_head_takes_its_slowest():
    slow = SlowHeads(torch.tensor([[5.0, 900, 3], [7, 8, 1200]]), threshold=1000)
    assert slow.mask.tolist() == [[False, False, False], [False, False, True]]
    mask, stand_in = slow.within([0])
    assert mask.tolist() == [[False, True, False]] and stand_in
    mask, stand_in = slow.within([0, 1])
    assert mask.sum() == 1 and mask[1, 2] and not stand_in


def test_untrained_signals():
    doc = document(0, 11)
    slow = SlowHeads(torch.arange(21.0).view(7, 3), threshold=19)  # heads 1 and 2 of GDN layer 6 (layer 8)
    found = untrained(doc, GEOMETRY, 9, slow, WINDOW)
    window = range(1, 7)
    for i in range(11):
        beta, g, v = (doc.signals[:, i, :, s] for s in range(3))
        mean = sum((beta * v)[k, m] for k in window for m in range(3)) / 18
        assert found["write"][i].item() == pytest.approx(mean.item(), rel=1e-5)
        assert found["retention"][i].item() == pytest.approx(g[1:].exp().mean().item(), rel=1e-5)
        assert found["forget"][i].item() == pytest.approx(-g[1:].mean().item(), rel=1e-5)
        assert found["beta"][i].item() == pytest.approx(beta[1:].mean().item(), rel=1e-5)
        assert found["v"][i].item() == pytest.approx(v[1:].mean().item(), rel=1e-5)
        assert found["v_preceding"][i].item() == pytest.approx(v[6].mean().item(), rel=1e-5)
        assert found["v_slow"][i].item() == pytest.approx(v[6, 1:].mean().item(), rel=1e-5)
        assert found["write_slow"][i].item() == pytest.approx((beta * v)[6, 1:].mean().item(), rel=1e-5)
    assert found["age"].argmax() == 0  # older first


@pytest.fixture(scope="module")
def rows(labelled):
    folds = held_out(labelled, GEOMETRY, dataclasses.replace(RECIPE, hidden=16, epochs=30, batch=32))
    return predictor_rows(labelled, folds, GEOMETRY, slow_heads(labelled, 100), WINDOW, "quick")


def test_rows_are_complete_and_tidy(rows):
    SCHEMA.validate(rows)
    assert len(rows) == (len(PREDICTORS) + 1) * 3 * 6 * len(METRICS)
    assert set(rows["method"]) == set(PREDICTORS) | set(SUMMARIES) and set(rows["metric"]) == set(METRICS)
    assert set(rows["experiment"]) == {"predictors"} and not rows["value"].isna().any()
    options = rows["options"].map(json.loads)
    assert set(options.map(lambda o: o["layer"])) == {1, 4, 9}
    assert options[rows["method"] == "write_slow"].map(lambda o: "slow_heads" in o).all()
    assert not rows.duplicated(["method", "options", "task", "item", "metric"]).any()


def test_rows_order_the_predictors_as_they_were_planted(rows):
    """Utility follows head 1 of GDN layer 0, which the windows of attention layers 1 and 4 hold and that of 9 lacks."""
    mean = rows[rows["metric"] == "overlap@10"].groupby(["method", "options"])["value"].mean()
    for layer in (1, 4):
        value = mean.xs(json.dumps({"layer": layer}), level="options")
        assert value["mlp"] > value["random"] + 0.3 and value["oracle"] > value["random"] + 0.3
        assert value["mlp"] > value["age_mlp"] + 0.3
    value = mean.xs(json.dumps({"layer": 9}), level="options")
    assert value["oracle"] > 0.4 and value["mlp"] < 0.4


def test_untrained_signals_come_from_the_window(labelled):
    doc, slow = labelled[0][0], slow_heads(labelled, 100)
    for window in (1, 2):
        layers = list(range(7 - window, 7))  # of the seven GDN layers, all before attention layer 9
        expected = doc.signals[layers][..., 0].mean((0, 2))
        torch.testing.assert_close(untrained(doc, GEOMETRY, 9, slow, window)["beta"], expected)


def test_the_oracle_finds_the_planted_head(labelled):
    assert {k: v.tolist() for k, v in oracle_cells(labelled, GEOMETRY).items()} == {1: [1, 1], 4: [1, 1], 9: [1, 1]}


def test_a_corpus_without_a_fold_is_refused(labelled):
    folds = held_out(labelled, GEOMETRY, dataclasses.replace(RECIPE, hidden=2, epochs=1))
    del folds["code"]
    with pytest.raises(InputError, match="without corpus 'code'"):
        predictor_rows(labelled, folds, GEOMETRY, slow_heads(labelled, 100), WINDOW, "quick")


def test_the_example_document_is_the_median_one(labelled):
    assert example_layer(GEOMETRY) == 9
    slow = slow_heads(labelled, 100)
    rows = example_rows(labelled, GEOMETRY, slow, WINDOW, "quick")
    SCHEMA.validate(rows)
    found = json.loads(rows["options"][0])
    rhos = sorted(
        spearmanr(untrained(d, GEOMETRY, 9, slow, WINDOW)["write_slow"], d.utility[2].mean(0)).statistic
        for c in labelled
        for d in c
    )
    assert found["layer"] == 9 and found["spearman"] == pytest.approx(rhos[2])
    assert sorted(rows.loc[rows["metric"] == "spearman", "value"]) == pytest.approx(rhos, abs=1e-6)
    name, i = rows["task"][0], found["document"]
    doc = next(c for c in labelled if c.name == name)[i]
    trace = rows[rows["method"] == "utility"].sort_values("item")["value"].to_numpy()
    assert len(trace) == doc.n and trace[1:].max() == pytest.approx(1)
    assert trace[3] == pytest.approx((doc.utility[2].mean(0)[3] / doc.utility[2].mean(0)[1:].max()).item(), rel=1e-5)
