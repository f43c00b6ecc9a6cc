"""Where an eager decode step's time goes, on sizes for a CPU."""

import pandas as pd
import pytest

from kvrepro.kernels.common import INTERPRETED
from kvrepro.profiling import bench_eager
from kvrepro.profiling.settings import load


@pytest.mark.skipif(not INTERPRETED, reason="the tiny profile is of a CPU, where kernels are interpreted")
def test_a_step_is_split_for_both_methods(monkeypatch):
    monkeypatch.setattr(bench_eager, "WARM", 1)
    found = pd.DataFrame(bench_eager.rows(load("tiny"), 24, steps=1))
    assert list(found.columns) == bench_eager.COLUMNS
    took = found.set_index(["method", "what"])["milliseconds"]
    for method in ("full", "wg_kv"):
        assert 0 < took[method, "attention"] < took[method, "host"] <= took[method, "step"]
    assert "gate" in took["wg_kv"] and "gate" not in took["full"]
    calls = found.set_index(["method", "what"])["calls"]
    linear = calls["full"][calls["full"].index.str.contains("linear")].sum()
    assert linear == 2 * 7 + 1  # of the tiny profile's two layers, and the logits


def test_a_machine_without_a_gpu_is_told(tmp_path, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    with pytest.raises(SystemExit):
        bench_eager.main(["--out", str(tmp_path / "x.csv")])
    assert "needs a CUDA GPU" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench_eager.main(["--profile", "tiny", "--tokens", "0"])
    assert "--tokens must be at least 1" in capsys.readouterr().err
