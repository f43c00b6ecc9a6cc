"""Parts of the benchmark of vertical-slash attention that decide what its rows say."""

from __future__ import annotations

import argparse
import csv
import time

import pytest
import torch
from paged_tools import DEVICE

from kvrepro.errors import InputError
from kvrepro.kernels.vertical_slash import vertical_slash_attention_reference, visible
from kvrepro.kernels.write_gate import GateTiling
from kvrepro.profiling import bench_vertical_slash as bench

HEADS = (4, 2, 32)


def small() -> bench.Bench:
    return bench.Bench(DEVICE, time.monotonic() + 60, repeats=1)


def test_operations_count_the_visible_pairs():
    *_, admitted = bench.tensors(small(), 90, 0.25, HEADS)
    pairs = int(visible(admitted, 20, 90, 0).sum()) * 2  # two query heads per KV head
    assert bench.operations(admitted, 20, 4, 32) == 4 * 32 * pairs


def test_sampled_error_tells_a_right_result_from_a_wrong_one():
    q, k, v, admitted = bench.tensors(small(), 90, 0.25, HEADS)
    right = vertical_slash_attention_reference(q, k, v, admitted, 20)
    assert bench.sampled_error(right, q, k, v, admitted, 20) < bench.LIMIT
    assert bench.sampled_error(right, q, k, v, ~admitted, 20) > 10 * bench.LIMIT
    right[:, :, -1] = float("nan")
    assert not bench.sampled_error(right, q, k, v, admitted, 20) < bench.LIMIT


def test_a_failure_and_the_end_of_the_time_do_not_end_the_run(capsys):
    def fail():
        raise RuntimeError("out of\nshared memory")

    run = small()
    assert run.row("vertical_slash", fail, variant="a") is None
    assert run.rows == [{"what": "vertical_slash", "variant": "a", "failed": "RuntimeError: out of shared memory"}]
    run.deadline = 0
    assert run.row("vertical_slash", lambda: {"ms": 1.0}, variant="b") is None
    assert "out of shared memory" in (said := capsys.readouterr().out) and "the time is up" in said


def test_all_parts_run_and_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "tensors", lambda b, n, kept, _tensors=bench.tensors: _tensors(b, n, kept, HEADS))
    monkeypatch.setattr(bench, "correct", lambda b, name: name == "64x32w4s2")
    monkeypatch.setattr(bench, "matrix_product", lambda *_: 1e12)
    monkeypatch.setattr(bench, "streaming_read", lambda *_: 1e11)
    for name, value in {"QUERY_HEADS": 4, "KV_HEADS": 2, "DIM": 32, "CALLS": 1}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench.gate, "TILINGS", {"many": GateTiling(64, 64, 4, 2), "few": GateTiling(16, 64, 4, 2)})
    options = argparse.Namespace(variants=["64x32w4s2"], tokens=66, lengths=[33], sweeps=False)
    run = small()
    bench.run(run, options)
    bench.write(run.rows, tmp_path / "rows.csv")
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert not any(row.get("failed") for row in rows)
    assert {row["what"] for row in rows} == {"dense", "vertical_slash", "write_gate"}
    sparse = [row for row in rows if row["what"] == "vertical_slash"]
    assert all(float(row["over_cudnn"]) > 0 and float(row["error"]) < bench.LIMIT for row in sparse)
    with pytest.raises(InputError, match="No tiling"):
        bench.run(run, argparse.Namespace(variants=["128x64w8s3"], tokens=66, lengths=[], sweeps=False))


def test_bf16_is_what_is_measured():
    assert all(x.dtype == torch.bfloat16 for x in bench.tensors(small(), 8, 0.5, HEADS)[:3])
