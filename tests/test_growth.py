"""Caches that grow under each primitive, token by token, and what Figure 2b and Table 1 say of them."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from synthetic_admission import admission_rows, pattern_rows

from kvrepro.analysis import growth as analysis
from kvrepro.analysis.growth import Primitive, grow, growth_rows
from kvrepro.analysis.patterns import PRIMITIVES, growth
from kvrepro.cache.admitted import EVERYTHING, Policy
from kvrepro.errors import InputError
from kvrepro.figures.patterns import figure_2b
from kvrepro.methods import bounding
from kvrepro.results import SCHEMA
from kvrepro.tables.primitives import table_1

BUDGET, WINDOW = 32, 8


def gate(layer, keys_pre_rope, keys, positions):
    """Every third token is admitted, in every head."""
    return (positions % 3 == 0).to(keys.dtype).expand(keys.shape[:3])


@pytest.fixture
def primitives():
    limit = bounding.build("snapkv", {"budget": BUDGET, "window": WINDOW, "kernel": 1}).limit()
    third = Policy(WINDOW, gate)
    made = [(EVERYTHING, None), (third, None), (EVERYTHING, limit), (third, limit)]
    options = {"bounding": {"budget": BUDGET}}
    return [Primitive(name, *each, options) for name, each in zip(PRIMITIVES, made, strict=True)]


@pytest.mark.parametrize("points", [7, 64])
def test_what_is_held_is_counted_token_by_token(tiny_dense, tokens, primitives, monkeypatch, points):
    monkeypatch.setattr(analysis, "POINTS", points)
    full, admission, eviction, both = grow(tiny_dense, tokens, primitives).curves
    assert full[-1] == (100, 100, 0) and all(held == fed for fed, held, _ in full)
    for fed, held, _ in admission:
        old = max(0, fed - WINDOW)
        assert held == min(fed, WINDOW) + len([p for p in range(old) if p % 3 == 0])
    for curve, least in ((eviction, 10), (both, 1)):
        assert curve[-1][2] >= least and max(held for _, held, _ in curve) <= BUDGET + 1
        fed, held, _ = next(point for point in curve if point[2])
        before = [point for point in curve if not point[2]][-1]
        assert before[0] == fed and held < BUDGET < before[1]  # what an eviction takes, at once
    assert next(fed for fed, _, n in both if n) > next(fed for fed, _, n in eviction if n) == BUDGET + 1


def test_rows_sum_up_a_document(tiny_dense, tokens, primitives):
    rows = SCHEMA.validate(growth_rows(tiny_dense, [tokens, tokens[:60]], primitives, "stdlib", "quick"))
    first = rows[(rows["task"] == "stdlib 0") & (rows["item"] == 0) & (rows["metric"] != "entries")]
    found = first.set_index(["method", "metric"])["value"]
    assert found["full", "attended"] == 50 and found["full", "first_eviction"] == 100
    assert found["snapkv", "first_eviction"] == BUDGET + 1 and found["snapkv", "evictions"] >= 10
    assert found["wg_kv+snapkv", "attended"] < found["snapkv", "attended"] < BUDGET
    ends = growth(rows, "entries").value
    assert ends[0] == 80 and ends[2] <= BUDGET
    assert set(json.loads(rows["options"].iloc[0])) == {"bounding"}


def test_a_document_is_not_fed_with_gradients(tiny_dense, tokens, primitives):
    assert torch.is_grad_enabled() and grow(tiny_dense, tokens[:20], primitives).curves[0][-1][1] == 20


def test_figure_2b_shows_the_bounded_cache_without_and_with_admission():
    figure = figure_2b(pattern_rows(), lab=True)
    above, below = figure.axes
    labels = [[line.get_label() for line in axes.get_lines()][:2] for axes in (above, below)]
    assert labels[0][1] == "SnapKV, 16 evictions" and labels[1][1].endswith(", 4 evictions")
    assert (
        list(above.get_lines()[1].get_ydata()) == [0, 200, 400] and list(below.get_lines()[0].get_xdata())[-1] == 1000
    )
    assert "a sketch" in figure.texts[-1].get_text().replace("\n", " ")


def test_table_1_sets_what_is_stored_beside_what_is_read():
    frame, text = table_1(pd.concat([pattern_rows(), admission_rows()], ignore_index=True), lab=True)
    table = frame.set_index("primitive")
    assert list(table.index) == ["none", "admission", "selection", "eviction", "admission and eviction"]
    assert table["stored"].to_list() == pytest.approx([100, 50, 100, 40, 40])
    assert table["read"].to_list() == pytest.approx([100, 50, 100 * 64 / 1005.5, 60, 45], rel=1e-3)
    assert (table["stored_low"] <= table["stored"]).all() and "within 400 entries" in text
    assert "selection" not in table_1(pattern_rows())[0]["primitive"].to_list()
    with pytest.raises(InputError, match="run the target patterns"):
        table_1(admission_rows())


def test_the_tasks_of_a_selection_weigh_the_same_in_table_1():
    """Contexts of the first task are ten times as long as those of two others, of which there are a quarter as many."""
    rows = admission_rows(items=40)
    long = rows["task"] == rows["task"].iloc[0]
    for column in ("n_tokens", "kept_entries"):
        rows.loc[long, column] *= 10
    rows = rows[long | (rows["item"] < 10)]
    frame, _ = table_1(pd.concat([pattern_rows(), rows], ignore_index=True))
    line = frame.set_index("primitive").loc["selection"]
    assert line["read"] == pytest.approx((0.64 + 6.4 + 6.4) / 3, rel=0.02)
    assert line["read_high"] - line["read_low"] < 0.1  # of each task the contexts are about as long
