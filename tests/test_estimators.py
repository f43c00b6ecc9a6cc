"""Features, the batched networks, ridge regression, their files, and the method that uses them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from synthetic_labels import GEOMETRY, LM, RECIPE, corpus, document
from torch import nn

from kvrepro.errors import InputError
from kvrepro.estimators import folds, mlp
from kvrepro.estimators.features import columns, features, widths
from kvrepro.methods import eviction
from kvrepro.methods.eviction.gatesight import GateSight
from kvrepro.models.capture import prefill
from kvrepro.training import estimators as training
from kvrepro.training.estimators import fit_ridge, held_out, sample_positions, train, train_mlp

WINDOW = RECIPE.window
QUICK = dataclasses.replace(RECIPE, hidden=8, epochs=2, positions=30, batch=16)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    return [
        corpus(folder, name, [document(seed + i, n) for i, n in enumerate((40, 25, 60))])
        for name, seed in (("prose", 0), ("code", 10), ("maths", 20))
    ]


@pytest.fixture(scope="module")
def samples(labelled):
    return sample_positions(labelled, QUICK)


@pytest.mark.parametrize(
    ("layer", "window", "read"), [(1, 6, [0]), (4, 6, [0, 1, 2]), (9, 6, [1, 2, 3, 4, 5, 6]), (9, 2, [5, 6])]
)
def test_features_are_equation_3(layer, window, read):
    signals, n = document(0, 17).signals, 17
    found = features(signals, GEOMETRY, layer, window)
    assert found.shape == (n, len(read) * 3 * 3 + 3)
    for i in range(1, n + 1):
        row = [signals[k, i - 1, head, s] for k in read for head in range(3) for s in range(3)]
        row += [i / n, (n - i) / n, math.log(1 + n - i) / math.log(1 + n)]
        torch.testing.assert_close(found[i - 1], torch.tensor(row, dtype=torch.float32))


def test_layers_with_fewer_features_are_padded_with_zeros():
    assert widths(GEOMETRY, WINDOW) == [12, 30, 57] and columns(GEOMETRY, WINDOW).shape == (3, 57)
    assert columns(GEOMETRY, 0).shape == (3, 3) and widths(GEOMETRY, 0) == [3, 3, 3]
    heads = training.initial(GEOMETRY, RECIPE)
    x = heads.standardised(mlp.flat(document(0, 9).signals))
    assert not x[0, :, 12:].any() and not x[1, :, 30:].any() and x[2, :, 30:].any()


def test_positions_of_a_document_are_the_same_whatever_else_is_read(labelled, samples):
    alone = sample_positions(labelled[1:2], QUICK)
    assert torch.equal(alone.matrix, samples.matrix[samples.corpus == 1])
    assert len(alone.corpus) == 30 + 25 + 30  # 30 of each document, all of the one with 25
    assert len(alone.matrix.unique(dim=0)) == len(alone.matrix)


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (2, 0)])
def test_batched_training_is_training_each_network_alone(samples, layer, head):
    together = train_mlp(samples, GEOMETRY, QUICK)
    start, width = training.initial(GEOMETRY, QUICK), widths(GEOMETRY, WINDOW)[layer]
    net = nn.Sequential(nn.Linear(width, QUICK.hidden), nn.ReLU(), nn.Linear(QUICK.hidden, 1))
    with torch.no_grad():
        net[0].weight.copy_(start.w1[layer, :width, head].T)
        net[0].bias.copy_(start.b1[layer, head])
        net[2].weight.copy_(start.w2[layer, head][None])
        net[2].bias.copy_(start.b2[layer, head][None])
    x = samples.matrix[:, columns(GEOMETRY, WINDOW)[layer, :width]]
    x = (x - x.mean(0)) / x.std(0, correction=0)
    y = samples.targets[:, layer, head]
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    order = torch.Generator().manual_seed(QUICK.seed)
    for _ in range(QUICK.epochs):
        for batch in torch.randperm(len(x), generator=order).split(QUICK.batch):
            loss = nn.functional.binary_cross_entropy_with_logits(net(x[batch])[:, 0], y[batch])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), QUICK.clip)
            optimizer.step()
    torch.testing.assert_close(together.w1[layer, :width, head].T, net[0].weight, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(together.b1[layer, head], net[0].bias, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(together.w2[layer, head], net[2].weight[0], rtol=1e-3, atol=1e-5)
    doc = document(3, 20)
    z = (
        features(doc.signals, GEOMETRY, GEOMETRY.attention_layers[layer], WINDOW) - together.mean[layer, :width]
    ) / together.std[layer, :width]
    torch.testing.assert_close(together.predict(doc.signals)[layer, head], net(z)[:, 0].sigmoid(), rtol=1e-3, atol=1e-5)
    assert not together.w1[layer, width:].any()


def test_clipping_limits_each_network_alone(samples):
    weights = [torch.zeros(2, 3, 2, 4), torch.zeros(2, 2, 4), torch.zeros(2, 2, 4), torch.zeros(2, 2)]
    for w in weights:
        w.grad = torch.full_like(w, 0.01)
    for w in weights:
        w.grad[1, ..., :] = w.grad[1] * 100
    before = [w.grad.clone() for w in weights]
    training._clip(weights, 1.0)
    norm = (3 * 4 + 4 + 4 + 1) ** 0.5  # of a network whose gradients are all 1
    for w, old in zip(weights, before, strict=True):
        torch.testing.assert_close(w.grad[0], old[0])
        torch.testing.assert_close(w.grad[1], old[1] / norm, rtol=1e-5, atol=0)


def test_ridge_solves_the_normal_equations(samples):
    found = fit_ridge(samples, GEOMETRY, QUICK, leave_out="code")
    rows = (samples.corpus != 1).numpy()
    for layer, width in enumerate(widths(GEOMETRY, WINDOW)):
        x = samples.matrix[:, columns(GEOMETRY, WINDOW)[layer, :width]].double().numpy()[rows]
        x = (x - x.mean(0)) / x.std(0)
        y = samples.targets[:, layer].double().numpy()[rows]
        weights = np.linalg.inv(x.T @ x + QUICK.ridge * len(x) * np.eye(width)) @ x.T @ (y - y.mean(0))
        np.testing.assert_allclose(found.w2[layer, :, :width], weights.T, atol=1e-5)
        np.testing.assert_allclose(found.b2[layer], y.mean(0), atol=1e-6)
        assert not found.w2[layer, :, width:].any()
    doc = document(3, 20)
    x = (features(doc.signals, GEOMETRY, 9, WINDOW) - found.mean[2]) / found.std[2]
    torch.testing.assert_close(found.predict(doc.signals)[2], (x @ found.w2[2].T + found.b2[2]).T)


def test_a_left_out_corpus_is_not_seen(labelled, samples):
    changed = dataclasses.replace(samples, matrix=samples.matrix.clone(), targets=samples.targets.clone())
    changed.matrix[samples.corpus == 2] += 5
    changed.targets[samples.corpus == 2] = 1
    for fit in training.LEARNED.values():
        for x, y in zip(*(vars(fit(s, GEOMETRY, QUICK, "maths")).values() for s in (samples, changed)), strict=True):
            assert (x is None and y is None) or torch.equal(x, y)
    with pytest.raises(InputError, match="at least two"):
        held_out(labelled[:1], GEOMETRY, QUICK)


def test_the_networks_learn_what_the_signals_tell(labelled):
    heads = train_mlp(sample_positions(labelled, RECIPE), GEOMETRY, dataclasses.replace(RECIPE, epochs=60, batch=32))
    doc = document(99, 200)
    best, predicted = doc.utility[1, 0].topk(20).indices, heads.predict(doc.signals)[1, 0].topk(20).indices
    assert len(set(best.tolist()) & set(predicted.tolist())) >= 12


@pytest.fixture(scope="module")
def trained(labelled, tmp_path_factory):
    path = tmp_path_factory.mktemp("estimators") / "made-up.safetensors"
    found = train(labelled, GEOMETRY, QUICK)
    assert found.seconds > 0
    found.save(path)
    return found, path


def test_layer_gates_are_means_over_all_tokens(labelled, trained):
    documents = [d for c in labelled for d in c]
    expected = sum(d.layer_gates * d.n for d in documents) / sum(d.n for d in documents)
    torch.testing.assert_close(trained[0].layer_gates, expected)


def test_estimators_come_back_as_they_were(trained):
    found, path = trained
    again, signals = mlp.load(path, GEOMETRY, LM.fingerprint), document(3, 20).signals
    for x, y in zip(found.score(signals), again.score(signals), strict=True):
        assert x.shape == (2, 20) and x.dtype == torch.float32 and torch.equal(x, y)
    assert torch.equal(found.layer_gates, again.layer_gates)
    assert again.corpora == ["prose", "code", "maths"] and again.recipe["positions"] == 30


def test_long_contexts_are_scored_in_parts(trained, monkeypatch):
    signals = document(3, 50).signals
    whole = trained[0].heads.predict(signals)
    monkeypatch.setattr(mlp, "CHUNK", 7)
    torch.testing.assert_close(trained[0].heads.predict(signals), whole)


def test_estimators_of_another_model_are_refused(trained, tmp_path):
    path = trained[1]
    with pytest.raises(InputError, match=r"made-up\.safetensors was made for another model .*delete it and run"):
        mlp.load(path, GEOMETRY, "0" * 8)
    with pytest.raises(InputError, match="was made for another model"):
        mlp.load(path, dataclasses.replace(GEOMETRY, kv_heads=4), LM.fingerprint)
    with pytest.raises(InputError, match="do not fit"):
        trained[0].score(document(0, 9).signals[:3])
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"cut\.safetensors is truncated or corrupt"):
        mlp.load(tmp_path / "cut.safetensors", GEOMETRY, LM.fingerprint)
    broken = dataclasses.replace(
        trained[0], heads=dataclasses.replace(trained[0].heads, b2=torch.full((3, 2), math.nan))
    )
    broken.save(tmp_path / "nan.safetensors")
    with pytest.raises(InputError, match=r"nan\.safetensors holds values of b2 that are not finite"):
        mlp.load(tmp_path / "nan.safetensors", GEOMETRY, LM.fingerprint)


def test_folds_come_back_as_they_were(labelled, tmp_path):
    found = held_out(labelled, GEOMETRY, QUICK)
    folds.save(tmp_path / "folds.safetensors", found, labelled[0].meta | {"recipe": dataclasses.asdict(QUICK)})
    again, meta = folds.load(tmp_path / "folds.safetensors", LM.fingerprint, GEOMETRY.as_dict())
    assert meta["recipe"]["window"] == WINDOW
    assert list(again) == ["code", "maths", "prose"] and set(again["code"]) == {"age_mlp", "ridge", "mlp"}
    signals = document(3, 20).signals
    for name, heads in found["code"].items():
        assert torch.equal(heads.predict(signals), again["code"][name].predict(signals))
    with pytest.raises(InputError, match="another model"):
        folds.load(tmp_path / "folds.safetensors", "0", GEOMETRY.as_dict())


def test_recipes_that_cannot_be_run_are_refused(labelled):
    for wrong in ({"epochs": 0}, {"learning_rate": 0.0}, {"window": -1}):
        with pytest.raises(InputError, match="estimators:"):
            dataclasses.replace(RECIPE, **wrong)
    with pytest.raises(InputError, match="no labelled corpora"):
        sample_positions([], QUICK)
    with pytest.raises(InputError, match="diverged"):
        broken = dataclasses.replace(sample_positions(labelled, QUICK))
        broken.targets[0] = math.nan
        train_mlp(broken, GEOMETRY, QUICK)


def test_gatesight_scores_a_prefill(tiny_hybrid, tiny_dense, tokens, tmp_path):
    lm = dataclasses.replace(tiny_hybrid, name="tiny")
    g = lm.geometry
    parent = prefill(lm, tokens)
    docs = [dataclasses.replace(document(i, 30), signals=parent.signals[:, i : i + 30]) for i in range(2)]
    for d in docs:
        d.utility, d.layer_gates = torch.rand(2, 2, 30), torch.tensor([0.2, 0.6])
    found = train([corpus(tmp_path, "c", docs, lm)], g, QUICK)
    found.save(tmp_path / "tiny.safetensors")
    method = eviction.build("gatesight", artifact_paths={"estimators": str(tmp_path / "tiny.safetensors")})
    method.prepare(lm)
    scores = method.score(parent)
    assert isinstance(method, GateSight) and method.allocation == "gate_proportional"
    assert [s.shape for s in scores] == [(2, 100)] * 2 and all(((s >= 0) & (s <= 1)).all() for s in scores)
    for x, y in zip(method._on_gpu(parent.signals), scores, strict=True):  # the interpreter stands for the GPU
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)
    for x, y in zip(scores, found.heads.predict(parent.signals), strict=True):
        assert torch.equal(x, y)
    torch.testing.assert_close(method.layer_weights(parent), torch.tensor([0.2, 0.6]))
    with pytest.raises(InputError, match="another model"):
        method.prepare(tiny_dense)
    with pytest.raises(InputError, match="use a hybrid"):
        method.score(prefill(tiny_dense, tokens))
