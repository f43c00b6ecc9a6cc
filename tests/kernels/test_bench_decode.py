"""The benchmark of the decode kernels, as far as it goes without a GPU."""

from __future__ import annotations

import math
import time

import pytest

from kvrepro.profiling import bench_decode
from kvrepro.profiling.bench_decode import WINDOW, Bench, admission


@pytest.mark.parametrize("ragged", [False, True])
def test_admission_keeps_the_share_it_is_asked_for(ragged):
    counts = admission(4, 2, 100_000, 0.25, ragged)
    assert counts.double().mean() == pytest.approx(0.25 * (100_000 - WINDOW), rel=1e-4)
    assert (counts.max() > 1.5 * counts.min()) == ragged


def test_a_failing_variant_is_a_row_and_late_ones_are_left_out(capsys):
    bench = Bench(time.monotonic() + 60, repeats=1, stream=1e12)
    assert bench.measure("good", lambda: (0.5, 10**12), plan="a") == 0.5

    def broken():
        raise RuntimeError("does not fit\nmore")

    assert bench.measure("bad", broken, plan="b") is None
    bench.deadline = -math.inf
    assert bench.measure("late", lambda: (1.0, 1), plan="c") is None
    assert [row["what"] for row in bench.rows] == ["good", "bad"]
    assert bench.rows[0]["share"] == 2.0
    assert bench.rows[1]["error"] == "RuntimeError: does not fit"
    assert "late" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["bench_decode", "--out", str(tmp_path / "x.csv")])
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        bench_decode.main()
    assert not list(tmp_path.iterdir())
