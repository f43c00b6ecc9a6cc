"""The benchmark of the scoring cost, as far as it goes without a GPU: every part at a tiny shape."""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvrepro.errors import InputError
from kvrepro.kernels.common import INTERPRETED
from kvrepro.methods.eviction.kvzip import attention_received
from kvrepro.profiling import bench_scoring, repetition, scoring
from kvrepro.profiling.bench_scoring import Bench
from kvrepro.profiling.repetition import Passes, attend, received
from kvrepro.profiling.scoring_inputs import geometry, random_layers, random_prefill, ready

SETTINGS = scoring.load()
on_a_cpu = pytest.mark.skipif(
    not INTERPRETED, reason="uses a CPU's dense attention, and compiled kernels take no tensors of a CPU"
)
#: Two groups of two layers, grouped queries, partial rotary.
TINY = replace(
    SETTINGS.shapes["Qwen3.8-27B"], name="tiny", layers=4, attention_every=2, query_heads=4, kv_heads=2, head_dim=16,
    rotary_dim=4, gdn_key_heads=2, gdn_heads=4, gdn_head_dim=8, hidden=24, intermediate=32,
)  # fmt: skip
SMALL = replace(SETTINGS, shapes={"tiny": TINY}, estimators={"window": 2, "hidden": 8})


@pytest.fixture
def bench():
    return Bench(time.monotonic() + 300, "cpu", torch.float32)


def test_published_shapes_are_those_of_the_paper():
    shape = SETTINGS.shapes["Qwen3.8-27B"]
    g = geometry(shape)
    assert (len(g.attention_layers), len(g.gdn_layers), g.group) == (16, 48, 6) and g.attention_layers[:2] == (3, 7)
    heads = ready("gatesight", shape, SETTINGS.estimators)._loaded.heads
    assert heads.w1.shape == (16, 867, 4, 64)
    assert geometry(SETTINGS.shapes["Qwen3.8-Flash-Next"]).cache_rows == 24
    assert SETTINGS.methods == ("gatesight", "triattention", "keydiff", "snapkv", "kvzip")


@pytest.mark.parametrize("method", ["gatesight", "triattention", "keydiff", "snapkv"])
def test_every_method_scores_random_inputs(method):
    scores = ready(method, TINY, SMALL.estimators).score(random_prefill(TINY, 70, "cpu", torch.float32))
    assert [s.shape for s in scores] == [(2, 70)] * 2 and all(torch.isfinite(s).all() for s in scores)


@pytest.mark.parametrize(("t", "n"), [(5, 0), (1, 9), (6, 33)])
def test_attention_of_both_halves_is_attention_over_all(t, n):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n + t, 16, generator=g) for heads in (4, 2, 2))
    q = q[:, :, n:]
    context = (k[:, :, :n], v[:, :, :n]) if n else None
    out, lse = attend(q, k[:, :, n:], v[:, :, n:], context, 0.3, "cpu")
    logits = 0.3 * q @ k.repeat_interleave(2, 1).mT
    logits = logits.masked_fill(torch.ones(t, n + t).triu(n + 1).bool(), float("-inf"))
    torch.testing.assert_close(out, logits.softmax(-1) @ v.repeat_interleave(2, 1))
    torch.testing.assert_close(lse, logits.logsumexp(-1))
    part = slice(0, max(1, n // 2))
    if n:
        found = received(q, k[:, :, part], lse, 0.3)
        torch.testing.assert_close(found, attention_received(q[0], k[0], part, 0.3))


@on_a_cpu
@pytest.mark.parametrize("chunk", [7, 8, 40])
def test_a_prefill_in_chunks_is_the_models_own_forward(chunk):
    passes = Passes(TINY, "cpu", torch.float32, tokens=22, groups=1, kernel="cpu")
    own = AutoModelForCausalLM.from_config(
        copy.deepcopy(passes._model.config), attn_implementation="eager"
    ).model.eval()
    own.load_state_dict(passes._model.state_dict())
    keys = []
    hook = own.layers[-1].self_attn.k_norm.register_forward_hook(lambda _, __, out: keys.append(out))
    x = torch.cat([passes._inputs[:, : min(chunk, 22 - s)] for s in range(0, 22, chunk)], 1)
    with torch.no_grad():
        expected = own(inputs_embeds=x, use_cache=True).past_key_values
    hook.remove()
    cache = passes.prefill(chunk)[0]
    torch.testing.assert_close(cache.layers[-1].keys, expected.layers[-1].keys, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache.layers[-1].values, expected.layers[-1].values, rtol=1e-4, atol=1e-4)


@on_a_cpu
def test_a_repetition_scores_every_entry_and_changes_no_cache():
    passes = Passes(TINY, "cpu", torch.float32, tokens=23, groups=2, kernel="cpu")
    caches = passes.prefill(10)
    before = [cache.layers[-1].keys.clone() for cache in caches]
    first, second = passes.repeat(6), passes.repeat(6)
    assert [s.shape for s in first] == [(2, 23)] * 2
    assert all(((s > 0) & (s <= 1)).all() for s in first)
    assert all(map(torch.equal, first, second))
    assert all(torch.equal(cache.layers[-1].keys, keys) for cache, keys in zip(caches, before, strict=True))


@on_a_cpu
def test_rows_of_all_methods_and_what_becomes_of_them(bench, tmp_path, capsys):
    methods = [*SETTINGS.methods, "prefill"]
    bench_scoring.score_methods(bench, SMALL, TINY, methods, 40)
    bench_scoring.check_kernel(bench, SMALL, TINY, 65)
    bench_scoring.run_passes(bench, TINY, methods, 40, "cpu", most=60, groups=1)
    bench_scoring.write(bench.rows, tmp_path / "rows.csv", bench.device)
    assert "CPU cores" in json.loads((tmp_path / "rows.csv.json").read_text())["hardware"]
    assert capsys.readouterr().out.count("\n") == len(bench.rows) == 5 + 4 + 4
    frame = scoring.read(tmp_path / "rows.csv")
    assert tuple(frame) == scoring.COLUMNS and frame["reason"].isna().all()
    assert frame.loc[frame["error"].notna(), "error"].max() < 1e-5
    part = frame[(frame["method"] == "kvzip") & frame["variant"].isna()].iloc[0]
    assert (part["layers_timed"], part["layers"]) == (2, 4)
    assert part["seconds_scaled_to_all_layers"] == pytest.approx(2 * part["seconds"])
    assert 0 < part["attention_seconds"] < part["seconds"]
    rows = scoring.tidy(scoring.read(tmp_path / "rows.csv"), "h200")
    found = scoring.cost(rows, "tiny", "kvzip", 40)
    assert found.value == pytest.approx(2 * part["seconds"]) and not found.whole and found.layers == "2 of 4"
    whole = scoring.cost(rows, "tiny", "gatesight", 40)
    assert whole.whole and scoring.cost(rows, "tiny", "gatesight", 41) is None
    assert scoring.cost(rows, "tiny", "gatesight", 65) is None  # only checked, not timed
    gathered = scoring.cost(rows, "tiny", "gatesight", 40, variant=scoring.GATHERING)
    assert gathered.whole and gathered.value != whole.value


@on_a_cpu
@pytest.mark.parametrize(("room", "held"), [(0, 1), (2**10, 1), (2**40, 2)])
def test_signals_are_gathered_from_what_layers_compute(room, held):
    layers = random_layers(TINY, 9, "cpu", torch.bfloat16, room)
    assert len(layers.values) == held and layers.values[0].shape == (9, 4, 8)
    signals = layers.gathered()
    assert signals.shape == (2, 9, 4, 3) and signals.dtype == torch.float32 and signals.is_contiguous()
    decay = -layers.a_log.exp()[:, None] * torch.nn.functional.softplus(layers.gate.float() + layers.dt_bias[:, None])
    torch.testing.assert_close(signals[..., 0], layers.beta.float().sigmoid())
    torch.testing.assert_close(signals[..., 1], decay)
    norms = torch.stack([layers.values[i % held].float().norm(dim=-1) for i in range(2)])
    torch.testing.assert_close(signals[..., 2], norms)


@on_a_cpu
def test_rows_with_gathering_say_what_layers_share(bench, monkeypatch):
    bench_scoring.score_methods(bench, SMALL, TINY, ["gatesight"], 12)
    monkeypatch.setattr(bench_scoring, "random_layers", lambda *given: random_layers(*given, room=0))
    bench_scoring.score_methods(bench, SMALL, TINY, ["gatesight"], 12)
    assert [r["variant"] for r in bench.rows] == ["", scoring.GATHERING] * 2
    assert bench.rows[1]["timing"] == bench.rows[0]["timing"]
    assert bench.rows[3]["timing"].endswith("; 2 GDN layers share value vectors of 1 in turn")
    bench_scoring.score_methods(bench, SMALL, TINY, ["keydiff"], 12)
    assert len(bench.rows) == 5


@on_a_cpu
def test_as_many_groups_as_fit_and_repeats_where_there_is_time(bench):
    bench_scoring.run_passes(bench, TINY, ["kvzip"], 24, "cpu", most=100)
    assert [(r["variant"], r["layers_timed"], r["passes"]) for r in bench.rows] == [("one group", 2, 1), ("", 4, 3)]
    assert bench.rows[1]["seconds_scaled_to_all_layers"] == ""
    bench_scoring.run_passes(bench, TINY, ["kvzip"], 24, "cpu", most=0)
    assert [(r["layers_timed"], r["passes"]) for r in bench.rows[2:]] == [(2, 1), (2, 1)]


def test_a_failure_is_a_row_and_late_ones_are_left_out(bench, capsys):
    def broken():
        raise RuntimeError("does not fit\nmore")

    assert not bench.measure(broken, model="tiny", method="snapkv", tokens=3)
    bench.deadline = -math.inf
    assert not bench.measure(lambda: {"seconds": 1.0}, model="tiny", method="late", tokens=3)
    assert [r["reason"] for r in bench.rows] == ["RuntimeError: does not fit"]
    assert "late" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="needs a CUDA GPU"):
        bench_scoring.main(["--out", str(tmp_path / "x.csv")])
    with pytest.raises(InputError, match="keydif"):
        bench_scoring.main(["--out", str(tmp_path / "x.csv"), "--methods", "keydif"])
    with pytest.raises(InputError, match="at least 1"):
        bench_scoring.main(["--out", str(tmp_path / "x.csv"), "--lengths", "0"])
    assert not list(tmp_path.iterdir())


def test_rows_of_several_runs_in_one_file(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a stand-in")
    monkeypatch.setattr(bench_scoring, "Bench", lambda deadline: Bench(deadline, "cpu", torch.float32))
    monkeypatch.setattr(bench_scoring, "load", lambda _: SMALL)
    path = tmp_path / "rows.csv"
    for method, more in (("keydiff", []), ("snapkv", ["--append"]), ("keydiff", ["--append"])):
        bench_scoring.main(["--out", str(path), "--models", "tiny", "--lengths", "40", "--methods", method, *more])
    assert scoring.read(path)["method"].tolist() == ["keydiff", "snapkv", "keydiff"]
    rows = scoring.tidy(scoring.read(path), "h200")
    assert scoring.cost(rows, "tiny", "keydiff", 40).value == scoring.read(path)["seconds"].iloc[-1]
    bench_scoring.main(["--out", str(path), "--models", "tiny", "--lengths", "40", "--methods", "snapkv"])
    assert scoring.read(path)["method"].tolist() == ["snapkv"]


def test_bad_files_are_named(tmp_path):
    text = scoring.CONFIG.read_text()
    for old, new, message in (
        ("attention_every: 4 #", "every: 4 #", "other keys"),
        ("table: table_8", "table: table_9", "table_9"),
        ("[0.004, 0.011, 0.043, 0.175]", "[0.004]", "gives 1 times of gatesight"),
    ):
        (tmp_path / "scoring.yaml").write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match=message):
            scoring.load(tmp_path / "scoring.yaml")
    (tmp_path / "rows.csv").write_text("model,method\n")
    with pytest.raises(InputError, match="has no column variant"):
        scoring.read(tmp_path / "rows.csv")
    with pytest.raises(InputError, match="cannot be read"):
        scoring.read(tmp_path / "none.csv")


def test_the_kernel_of_a_cpu_is_the_only_one_there():
    assert repetition.fastest_kernel(TINY, "cpu") == "cpu"
