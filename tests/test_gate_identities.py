"""What holds of gated attention and admitted caches by definition, and that the checks notice where it does not."""

from __future__ import annotations

import pytest
import torch

from kvrepro.analysis import gate_identities
from kvrepro.analysis.gate_identities import (
    STEPS,
    WINDOWS,
    attention_errors,
    identity_rows,
    mask,
    misplaced,
    misplaced_entries,
    multiplied,
)
from kvrepro.models.gate import WriteGates, initial
from kvrepro.models.gated_attention import distant_bias
from kvrepro.results import SCHEMA

WINDOW, THRESHOLD = 8, 0.5
CHECKS = {"open_gate", "closed_gate", "log_space"}


@pytest.fixture(params=["tiny_dense", "tiny_hybrid"])
def lm(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def gates(lm):
    layers = initial(lm.geometry, 8)
    with torch.no_grad():
        for layer in layers:
            layer.w2 *= 40  # gates from near zero to near one
    return WriteGates(layers, lm.geometry, lm.fingerprint, lm.name, WINDOW, 0.08)


def test_a_mask_of_ones_and_zeros_is_that_of_the_definition():
    gate = torch.tensor([[[0.5, 0.0, 0.25, 1.0]]])
    assert mask(gate, 2)[0, 0].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0.5, 1, 1, 0], [0.5, 0, 1, 1]]


def test_multiplied_exponentials_by_hand():
    query, key = torch.zeros(1, 2, 1, 4), torch.zeros(1, 1, 2, 4)
    value = torch.tensor([[[[1.0], [5.0]]]])
    found = multiplied(query, key, value, torch.tensor([[[[0.25, 1.0]]]]), 1.0)
    assert found.flatten().tolist() == pytest.approx([(0.25 + 5) / 1.25] * 2)


def test_identities_hold_on_a_model(lm, gates, tokens):
    errors = attention_errors(lm, gates, tokens)
    assert list(errors) == list(lm.geometry.attention_layers)
    assert all(set(found) == CHECKS and max(found.values()) < 1e-4 for found in errors.values())
    entries = misplaced_entries(lm, gates, tokens, THRESHOLD)
    assert set(entries) == set(errors)
    assert all(found == {"misplaced_after_prefill": 0, "misplaced_after_decoding": 0} for found in entries.values())


@pytest.mark.parametrize(
    ("wrong", "noticed"),
    [
        (lambda gates: distant_bias(gates) + 0.1, CHECKS),  # every weight beyond the window a tenth too large
        (lambda gates: distant_bias(gates, least=0.05), {"closed_gate", "log_space"}),  # a closed gate lets through
        (lambda gates: distant_bias(gates**2), {"log_space"}),
    ],
)
def test_a_wrong_attention_is_noticed(tiny_dense, tokens, monkeypatch, wrong, noticed):
    layers = initial(tiny_dense.geometry, 8)
    gates = WriteGates(layers, tiny_dense.geometry, tiny_dense.fingerprint, "tiny", WINDOW, 0.08)
    monkeypatch.setattr(gate_identities, "distant_bias", wrong)
    worst = attention_errors(tiny_dense, gates, tokens)[tiny_dense.geometry.attention_layers[0]]
    assert noticed <= {name for name, error in worst.items() if error > 1e-3}
    assert worst["open_gate"] < 1e-3 or "open_gate" in noticed


def test_entries_are_counted_by_hand():
    gates = torch.tensor([[0.9, 0.1, 0.1, 0.9, 0.1, 0.1]])  # of six tokens the last two are local
    for held, wrong in (
        ([0, 3, 4, 5, -1], 0),
        ([0, 3, 5, -1, -1], 1),  # a local entry is missing
        ([0, 1, 3, 4, 5], 1),  # one was not to be written
        ([1, 3, 4, 5, -1], 2),
        ([0, 3, 4, 5, 5], 1),  # held twice
    ):
        assert misplaced(torch.tensor([held]), gates, 0.5, 2) == wrong


def test_a_cache_with_another_threshold_is_noticed(lm, gates, tokens, monkeypatch):
    lower = lambda window, gate, threshold: policy(window, gate, 0.2)  # noqa: E731
    policy = gate_identities.Policy
    monkeypatch.setattr(gate_identities, "Policy", lower)
    found = misplaced_entries(lm, gates, tokens, THRESHOLD)
    assert sum(sum(each.values()) for each in found.values()) > 0


def test_rows_are_of_every_document_and_layer(tiny_dense, tokens):
    layers = initial(tiny_dense.geometry, 8)
    gates = WriteGates(layers, tiny_dense.geometry, tiny_dense.fingerprint, "tiny", WINDOW, 0.08)
    rows = SCHEMA.validate(identity_rows(tiny_dense, gates, [tokens, tokens.flip(0)], THRESHOLD, "stdlib", "quick"))
    counts = rows.groupby("metric").size()
    assert set(counts) == {2 * len(tiny_dense.geometry.attention_layers)} and set(counts.index) > CHECKS
    assert len(tokens) > WINDOWS * WINDOW > STEPS
    assert rows["options"].str.contains(f'"tokens": {WINDOWS * WINDOW}').all()
