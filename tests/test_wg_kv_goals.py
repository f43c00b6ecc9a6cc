"""The table of WG-KV's goals over rows with known numbers."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from synthetic_admission import admission_rows, size_of, validation_rows
from synthetic_bounded import bounded_rows

from kvrepro.tables.wg_kv_goals import COLUMNS, goals

TRAINING = pd.DataFrame(
    {"length": [4096] * 4, "rows": [8, 8, 1, 1], "what": ["without_gates", "with_gates"] * 2, "seconds": [2, 3, 1, 9]}
)


def table(rows, **more):
    frame, text = goals(pd.concat(rows, ignore_index=True), True, **more)
    assert list(frame.columns) == COLUMNS and text.count("\n| ") == 2 + len(frame)  # with the header
    return frame.set_index("goal_id")


def test_every_goal_has_the_number_of_the_rows():
    found = table([validation_rows(), admission_rows(), bounded_rows()], measured=[TRAINING])["measured"]
    assert found["largest_cache"] == pytest.approx(size_of(0.02, 0.1))
    assert found["smallest_cache"] == pytest.approx(size_of(0.64, 0.1))
    assert found["monotone_loss"] == 1
    leads = found[["lead_over_local_attention", "lead_over_duo_attention"]]
    assert list(leads) == pytest.approx([25, 12.5], rel=2e-2)
    assert (found["unbounded"], found["snapkv_alone"]) == (75, 25)
    assert (found["wg_kv+snapkv@trade_off=0.16"], found["wg_kv+snapkv@trade_off=1.28"]) == (50, 50)
    assert found["gate_training_overhead"] == pytest.approx(50)


def test_sampled_numbers_have_an_interval_and_others_none():
    found = table([validation_rows(), admission_rows(), bounded_rows()], measured=[TRAINING])
    timed = found.index == "gate_training_overhead"
    assert (found["low"] <= found["measured"])[~timed].all() and (found["measured"] <= found["high"])[~timed].all()
    assert found.loc["smallest_cache", "low"] < found.loc["smallest_cache", "high"] and found["low"][timed].isna().all()


def test_a_loss_that_falls_with_the_cache_is_not_monotone():
    rows = validation_rows()
    dearer = (rows["options"].str.contains('"lambda": 0.02')) & (rows["metric"] == "distillation_loss")
    rows["value"] = rows["value"].mask(dearer, 10 * rows["value"])
    assert table([rows])["measured"]["monotone_loss"] == 0


def test_what_rows_do_not_say_is_empty():
    found = table([validation_rows(thresholds=(0.5,)), bounded_rows(dense=0)])
    assert found["measured"].isna().all() and math.isnan(found.loc["lead_over_duo_attention", "measured"])
    assert set(found["goal"]) == {">0.6", "<0.15", ">=1", ">0", "<=25", ""}
