"""Which kernels a decode step spends its time in, from made-up events and on sizes for a CPU."""

import json
from pathlib import Path

import pandas as pd
import pytest

from kvrepro.files import sha256_file
from kvrepro.kernels.common import INTERPRETED
from kvrepro.profiling import trace_step
from kvrepro.profiling.settings import METHODS, PROTOCOLS
from kvrepro.profiling.trace_step import OTHER, aggregate, category, short

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, char*>(int)"
RSQRT = "void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)::{}>"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<unsigned short, unsigned int, 3, 128, 1>(x)"
GEMV = "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float>(x)"
FLASH = (
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64> >(pytorch_flash::Flash_fwd_params)"
)


@pytest.mark.parametrize(
    ("kernel", "name", "kind"),
    [
        ("_split_kernel", "_split_kernel", "decode attention"),
        ("_combine_kernel", "_combine_kernel", "decode attention"),
        (FLASH, "pytorch_flash::flash_fwd_splitkv_kernel", "decode attention"),
        ("_step_kernel", "_step_kernel", "promotion, cache writes"),
        (CAT, "CatArrayBatchedCopy_contig", "promotion, cache writes"),
        ("_kernel", "_kernel", "gates"),
        ("_matvec", "_matvec", "weight products"),
        (GEMV, "gemvx::kernel", "weight products"),
        ("nvjet_tst_64x8_64x16_1x2_h_bz_TNT", "nvjet_tst_64x8_64x16_1x2_h_bz_TNT", "weight products"),
        ("_rotary_split", "_rotary_split", OTHER),
        (ADD, "vectorized_elementwise_kernel<CUDAFunctor_add>", OTHER),
        (RSQRT, "vectorized_elementwise_kernel<rsqrt_kernel_cuda>", OTHER),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD ", OTHER),
    ],
)
def test_kernels_have_a_name_and_a_category(kernel, name, kind):
    assert (short(kernel).startswith(name), category(kernel)) == (True, kind)


def test_events_are_counted_per_step_and_overlaps_once():
    events = [("_matvec", 0, 10), ("_split_kernel", 20, 50), ("_combine_kernel", 40, 60), ("_matvec", 100, 110)]
    found = pd.DataFrame(aggregate(reversed(events), steps=2, wall=40.0)).set_index("kernel")
    assert found.loc["_matvec", ["calls", "microseconds"]].tolist() == [1, 10]
    assert found.loc["_split_kernel", ["calls", "microseconds"]].tolist() == [0.5, 15]
    assert found.loc[["wall", "busy", "busy share of wall"], "microseconds"].tolist() == [40, 30, 0.75]
    assert (found["category"] == "step").sum() == 3


@pytest.mark.skipif(not INTERPRETED, reason="the tiny profile is of a CPU, where kernels are interpreted")
def test_steps_of_both_methods_and_protocols_are_traced(tmp_path, capsys):
    out = tmp_path / "made" / "step.csv"
    trace_step.main(["--profile", "tiny", "--tokens", "24", "--steps", "1", "--out", str(out)])
    found = pd.read_csv(out)
    assert list(found.columns) == trace_step.COLUMNS
    about = json.loads(Path(f"{out}.json").read_text())
    assert about["command"].endswith("trace_step --profile tiny --model tiny --tokens 24 --steps 1 --out step.csv")
    assert about["sha256"] == sha256_file(out) and "CPU cores" in about["hardware"]
    assert set(zip(found["method"], found["protocol"], strict=True)) == {(m, p) for m in METHODS for p in PROTOCOLS}
    paper = found[(found["protocol"] == "paper") & (found["category"] == "weight products")]
    assert (
        paper.groupby("method")["calls"].sum() == 2 * 7 + 1
    ).all()  # of the tiny profile's two layers, and the logits
    assert "busy share of wall" in capsys.readouterr().out


def test_what_cannot_be_traced_is_named(capsys):
    import torch

    with pytest.raises(SystemExit):
        trace_step.main(["--steps", "0"])
    assert "must be at least 1" in capsys.readouterr().err
    with pytest.raises(trace_step.InputError, match="profiler saw no kernel"):
        aggregate([], 1, 1.0)
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            trace_step.main([])
        assert "needs a CUDA GPU" in capsys.readouterr().err
