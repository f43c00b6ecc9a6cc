"""The profile: its jobs, both protocols on a tiny model, and what figures, goals and claims make of rows."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from profile_rows import FASTER, OOM, profile_rows

from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.latency import RANGE
from kvrepro.claims.ledger import claims
from kvrepro.claims.queries import ask
from kvrepro.claims.report import Measured, judge
from kvrepro.claims.verdicts import CONTRADICTED, REPRODUCED
from kvrepro.errors import InputError
from kvrepro.figures import style
from kvrepro.kernels.common import INTERPRETED
from kvrepro.products import PROFILE_FIGURES
from kvrepro.profiling import fused, measure, run, summary
from kvrepro.profiling.arms import Paged, make_arm
from kvrepro.profiling.clock import Clock
from kvrepro.profiling.eager import Eager, random_model
from kvrepro.profiling.kernels import pairs_seen, profile_kernels
from kvrepro.profiling.lean import Lean, fuse
from kvrepro.profiling.masks import random_admission
from kvrepro.profiling.published import FILE, plotted
from kvrepro.profiling.rows import PROFILE, job_rows
from kvrepro.profiling.settings import Job, end_to_end, load
from kvrepro.tables.goals import COLUMNS, goals, met, ratio_table

LLAMA, QWEN = "Llama-3.1-8B-Instruct", "Qwen3-4B-Instruct-2507"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="gives kernels tensors of a CPU, where they are interpreted")


@pytest.fixture(scope="module")
def h200():
    return load("h200")


@pytest.fixture(scope="module")
def tiny():
    return load("tiny")


@pytest.fixture(scope="module")
def rows(h200):
    return profile_rows(h200)


# Settings and jobs


def test_shapes_have_the_published_numbers_of_parameters(h200):
    assert h200.shapes[LLAMA].parameters() == 8_030_261_248
    assert h200.shapes[QWEN].parameters() == 4_022_468_096
    share = h200.shapes[LLAMA].gate_parameters() / h200.shapes[LLAMA].parameters()
    assert share == pytest.approx(0.0042, abs=1e-4)  # "about 0.4 %", §5.3


def test_a_shape_counts_what_transformers_builds(tiny):
    shape = tiny.shapes["tiny"]
    model = random_model(shape, torch.float32, "cpu", 0)
    assert shape.parameters() == sum(p.numel() for p in model.parameters())


def test_jobs_are_unique_and_the_ends_of_the_papers_range_come_first(h200):
    jobs = run.jobs_of(h200)
    assert len({job.file for job in jobs}) == len(jobs)
    assert len(end_to_end(h200.profile)) == 2 * 2 * 5 * 2 * 2
    assert [job.tokens for job in jobs[:8]] == [204800] * 4 + [409600] * 4
    only = run.jobs_of(h200, ["*/prefill-409600-*", f"{LLAMA}/prefill-*"])
    assert [job.tokens for job in only[:8]] == [409600] * 8 and len(only) == 8 + 16


def test_shards_hold_every_job_once_and_keep_what_is_compared_together(h200):
    jobs = run.jobs_of(h200)
    shards = [run.shard(h200, jobs, i, 4) for i in range(4)]
    assert sorted(job.file for part in shards for job in part) == sorted(job.file for job in jobs)
    for part in shards:
        for job in part:
            other = dataclasses.replace(job, method="full", kept=1.0)
            assert other in part or other not in jobs


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    kept: 0.25\n", "    kept: 1.25\n", "kept must lie in"),
        ("    steps: 100\n", "", "steps"),
        ("models: [Llama-3.1-8B-Instruct, Qwen", "models: [Llama-3-8B-Instruct, Qwen", "did you mean"),
    ],
)
def test_a_fault_in_the_settings_is_one_sentence(tmp_path, old, new, message):
    text = Path("config/latency.yaml").read_text()
    assert old in text
    (tmp_path / "latency.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        load("h200", tmp_path / "latency.yaml")
    with pytest.raises(InputError, match="did you mean 'h200'"):
        load("h20")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_machine_without_a_gpu_is_told_so(h200, capsys):
    with pytest.raises(InputError, match="needs a CUDA GPU"):
        run.require_device(h200.profile)
    with pytest.raises(SystemExit):
        run.main(["--profile", "h200", "--out", "nowhere"])
    assert "needs a CUDA GPU" in capsys.readouterr().err


@pytest.mark.parametrize("shard", ["x", "2", "2/2", "0/0", "-1/2"])
def test_a_shard_that_is_none_of_them(shard, capsys):
    with pytest.raises(SystemExit):
        run.main(["--profile", "tiny", "--plan", f"--shard={shard}"])
    assert f"argument --shard: '{shard}' is no I/N" in capsys.readouterr().err


def test_a_pattern_that_no_job_matches():
    with pytest.raises(InputError, match="no job of profile 'tiny' matches"):
        run.main(["--profile", "tiny", "--plan", "--only", "decode"])


def test_the_plan_needs_no_gpu(capsys):
    run.main(["--profile", "h200", "--plan", "--only", "*/decode-409600-*"])
    assert len(capsys.readouterr().out.splitlines()) == 8


# Masks and kernels of the strongest baseline


def test_masks_have_the_exact_sparsity_and_differ_by_head():
    admitted = random_admission(3, 2, 4, 1001, 0.25, seed=1)
    assert (admitted.sum(-1) == 250).all()
    assert not (admitted[0] == admitted[1]).all()
    assert torch.equal(admitted, random_admission(3, 2, 4, 1001, 0.25, seed=1))
    assert random_admission(1, 1, 1, 7, 1.0, seed=0).all()


def test_pairs_are_those_of_the_mask():
    admitted = random_admission(1, 1, 2, 50, 0.3, seed=0)[0]
    i = torch.arange(50)
    mask = ((i[:, None] - i < 8) | admitted[..., None, :]) & (i[:, None] >= i)
    assert pairs_seen(admitted, 8) == mask.sum()


@interpreted
@pytest.mark.parametrize("options", [{}, {"norm": True}, {"residual": True}, {"norm": True, "glu": True}], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_matvec(options, rows):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 70), torch.randn(26, 70)
    given = {"eps": 1e-6, "glu": options.get("glu", False)}
    given["norm"] = torch.rand(70) if options.get("norm") else None
    given["residual"] = torch.randn(rows, 26) if options.get("residual") else None
    torch.testing.assert_close(fused.matvec(x, weight, **given), fused.matvec_reference(x, weight, **given))


@interpreted
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_rotary_split(norms, batch):
    torch.manual_seed(0)
    hq, hk, n, d = 4, 2, 5, 16
    start = 2 if batch == 1 else 0
    y = torch.randn(batch * n - start, (hq + 2 * hk) * d)
    positions = torch.randint(0, 500_000, (len(y),))
    frequencies = 10_000.0 ** (-torch.arange(0, d, 2) / d)
    given = (torch.rand(d), torch.rand(d), 1e-6) if norms else None
    results = []
    for function in (fused.rotary_split, fused.rotary_split_reference):
        out = tuple(torch.full((batch, h, n, d), 7.0) for h in (hq, hk, hk, hk))
        function(y, positions, frequencies, 1.5, (hq, hk), given, out, start)
        results.append(out)
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, atol=2e-4, rtol=1e-4)


@interpreted
def test_silu_mul():
    x = torch.randn(3, 26)
    torch.testing.assert_close(fused.silu_mul(x), fused.silu_mul_reference(x))


# Both protocols


def arm_of(tiny, phase, method, protocol, tokens, kept=0.25):
    shape = tiny.shapes["tiny"]
    job = Job("end_to_end", "tiny", phase, tokens, method, protocol, kept, tiny.profile.window)
    return make_arm(shape, job, tokens + 8, Clock("cpu"), "cpu", torch.float32, 0)


@interpreted
@pytest.mark.parametrize("method", ["full", "wg_kv"])
def test_both_protocols_compute_the_same_model(tiny, method):
    """Prefill and two steps: the decoder of the strongest baseline against transformers' modules."""
    shape, n = tiny.shapes["tiny"], 24
    model = random_model(shape, torch.float32, "cpu", 0)
    for p in model.parameters():
        p.normal_(0, 0.3)
    tokens = torch.randint(0, 64, (n,), generator=torch.Generator().manual_seed(3))
    kept = 1.0 if method == "full" else 0.25
    eager = Eager(model, arm_of(tiny, "prefill", method, "paper", n, kept), range(shape.layers))
    logits, token = eager.prefill(tokens), tokens[-1:]
    stepped = []
    for _ in range(2):
        token = eager.step(token)
        stepped.append(token.item())
    eager.close()
    lean = Lean(
        shape, fuse(model), arm_of(tiny, "prefill", method, "strongest_baseline", n, kept), range(shape.layers), 16
    )
    torch.testing.assert_close(lean.prefill(tokens), logits, atol=1e-4, rtol=1e-4)
    token, position, ours = tokens[-1:], torch.tensor([n]), []
    for _ in range(2):
        token = lean.step(token, position)
        position += 1
        ours.append(token.item())
    assert ours == stepped


@interpreted
def test_wg_kv_with_everything_admitted_is_full_attention(tiny):
    shape, n = tiny.shapes["tiny"], 40
    model = random_model(shape, torch.float32, "cpu", 0)
    tokens = torch.randint(0, 64, (n,), generator=torch.Generator().manual_seed(3))
    found = []
    for method in ("full", "wg_kv"):
        eager = Eager(model, arm_of(tiny, "prefill", method, "paper", n, kept=1.0), range(shape.layers))
        found.append(eager.prefill(tokens))
        eager.close()
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@interpreted
def test_the_masks_decide_what_is_held(tiny):
    arm = arm_of(tiny, "prefill", "wg_kv", "paper", 40)
    assert isinstance(arm, Paged)
    k = torch.randn(1, 2, 40, 16)
    arm.fill(0, k, k)
    older = arm.admitted[0, ..., : 40 - tiny.profile.window].sum(-1)
    assert torch.equal(arm.cache.entries()[0].long(), older + tiny.profile.window)
    assert arm.cache_bytes() >= int(arm.cache.entries()[0].sum()) * 2 * 16 * 4


@interpreted
def test_every_job_of_a_profile_gives_rows(tiny):
    bench = measure.Bench(tiny.profile)
    shape = tiny.shapes["tiny"]
    jobs = [job for job in end_to_end(tiny.profile) if job.method == "wg_kv"][:3]  # the fourth is timed further down
    for job in jobs:
        found = measure.measure(bench, shape, job, seconds=60)
        frame = PROFILE.validate(pd.DataFrame(job_rows(tiny.profile, shape, job, found)))
        values = frame.set_index(["metric", "component"])["value"]
        parts = values["seconds", "attention"] + values["seconds", "non_attention"]
        assert parts == pytest.approx(values["seconds", "total"])
        assert values["bytes", "weights"] == 4 * (shape.parameters() + shape.gate_parameters())
        assert (frame["layers_timed"] == shape.layers).all() and (frame["reason"] == "").all()


@interpreted
def test_a_job_without_time_times_fewer_layers_and_says_so(tiny):
    bench = measure.Bench(tiny.profile)
    job = end_to_end(tiny.profile)[-1]
    assert (job.phase, job.protocol) == ("prefill", "strongest_baseline")
    found = measure.measure(bench, tiny.shapes["tiny"], job, seconds=1e-9)
    assert found.layers_timed == 1 and found.seconds["total"] > 0
    whole = tiny.shapes["tiny"].layers * tiny.shapes["tiny"].kv_heads
    assert found.bytes["cache"] >= whole * tiny.profile.window * 2 * 16 * 4  # caches of the layers left out are there


def test_a_lack_of_memory_is_a_finding(tiny, monkeypatch):
    def fails(*args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 13.67 GiB. GPU 0 has a capacity")

    monkeypatch.setattr(measure, "_prefill", fails)
    job = end_to_end(tiny.profile)[-1]
    shape = tiny.shapes["tiny"]
    found = measure.measure(measure.Bench(tiny.profile), shape, job, 1)
    assert found.reason == "out of memory: Tried to allocate 13.67 GiB"
    frame = pd.DataFrame(job_rows(tiny.profile, shape, job, found))
    assert set(frame["component"]) == {"total", "attention", "non_attention", "weights", "cache", "peak"}
    assert frame["value"].isna().all() and (frame["reason"] == found.reason).all()


@interpreted
def test_kernels_are_checked_and_timed(tiny):
    frame = PROFILE.validate(pd.DataFrame(profile_kernels(tiny, measure.Bench(tiny.profile))))
    checks = frame[frame["experiment"] == "profile_checks"]
    assert set(checks["task"]) == {"vertical_slash", "decode_after_prefill", "ragged_decode"}
    assert (checks["value"] < 1e-4).all()
    table = summary.kernels(frame).set_index("task")
    assert {"dense_cudnn", "vertical_slash", "ragged_decode", "promotion", "compaction"} <= set(table.index)
    assert (table["seconds"] > 0).all() and table["share"].notna().all()
    pieces = frame[frame["experiment"] == "profile_fragmentation"].set_index("component")["value"]
    assert pieces["entries"] <= pieces["paged"] and pieces["preallocated"] >= pieces["entries"]


# What is read from rows


def test_values_are_scaled_in_the_summary_only_and_marked(h200):
    part = profile_rows(h200, layers_timed=4)
    whole = profile_rows(h200)
    key = (LLAMA, "prefill", 409600, "full", "paper", "seconds", "total")
    scaled, full = summary.value(part, *key), summary.value(whole, *key)
    assert scaled.value == pytest.approx(full.value)
    assert (scaled.whole, full.whole) == (False, True)
    assert "4 of 32 layers" in scaled.note
    assert part["value"].max() < whole["value"].max() or part.loc[part["metric"] == "seconds", "value"].max() < 40


def test_ratios(rows):
    table = summary.ratios(rows).set_index(["model", "phase", "n_tokens", "protocol", "component"])["ratio"]
    for protocol, faster in FASTER.items():
        assert table[LLAMA, "prefill", 409600, protocol, "attention"] == pytest.approx(faster)
    assert np.isnan(table[LLAMA, "prefill", 512000, "paper", "total"])
    assert summary.speedup(rows, QWEN, "decode", 102400, "paper", "attention").value == pytest.approx(4)
    assert summary.speedup(rows, "nothing", "decode", 102400, "paper") is None


def test_goals_have_a_row_for_each_line_and_come_from_rows(rows, h200):
    found = goals(rows, h200)
    assert list(found.columns) == COLUMNS
    assert not found.duplicated(["goal_id", "protocol"]).any()
    by = found.set_index(["goal_id", "protocol"])["measured"]
    assert by["vertical_slash_over_fastest_dense", "strongest_baseline"] == pytest.approx(3.7)
    assert by["vertical_slash_over_flash_attention_2", "paper"] == pytest.approx(3.7 * 6 / 3.2)
    assert by["planning_share", "kernel"] == pytest.approx(1)
    assert by["ragged_decode_bandwidth", "kernel"] == pytest.approx(90)
    assert by["prefill_speedup_llama_400k", "paper"] == pytest.approx(110 / (25 + 10.5))
    least = (16.06e9 + 67.65e6 + 13.42e9) / 4e12
    assert by["decode_step_over_bytes", "paper"] == pytest.approx((0.025 + 0.0105) / least, rel=1e-3)
    assert by["memory_paper_llama_400k", "paper"] == pytest.approx(57.6, abs=0.1)
    assert found["goal"].map(lambda goal: met(1.0, goal)).notna().all()
    empty = goals(rows[rows["experiment"] == "none"], h200)
    assert len(empty) == len(found) and empty["measured"].isna().all()


def test_a_goal_says_when_a_number_was_scaled(h200):
    found = goals(profile_rows(h200, layers_timed=4), h200).set_index("goal_id")
    assert "scaled up" in found.loc["prefill_speedup_llama_400k", "what"].iloc[0]


def test_an_absolute_goal_lists_the_lengths_that_were_scaled(rows, h200):
    ours = (rows["task"] == "prefill") & (rows["method"] == "wg_kv") & rows["n_tokens"].isin([307200, 512000])
    part = rows.assign(layers_timed=rows["layers_timed"].mask(ours, 4))
    found = goals(part, h200).set_index(["goal_id", "protocol"])["what"]
    said = "the largest of 100K, 200K, 300K, 400K, 500K"
    assert found["absolute_prefill_llama", "paper"].endswith(f"{said} (300K, 500K scaled up from some of the layers)")
    assert found["absolute_decode_llama", "paper"].endswith(said)


@pytest.mark.parametrize(("value", "goal", "expected"), [(3.6, ">=3.6", True), (2.1, "<=2", False), (1, "<1", False)])
def test_goals_are_met_or_not(value, goal, expected):
    assert met(value, goal) is expected
    assert met(math.nan, goal) is None


def test_published_values_are_compared_with_ours(rows, h200):
    found = plotted(h200)
    assert found.groupby("model")["value"].count().to_dict() == dict(zip(h200.profile.models, (54, 60), strict=True))
    llama = found[found["model"] == h200.profile.models[0]]
    totals = llama[llama["method"] == "wg_kv"].groupby(["task", "metric", "n_tokens"])["value"].sum()
    assert totals["prefill", "seconds", 409600] == pytest.approx(43.9, abs=0.05)  # as facts of the paper's Figure 8
    assert totals["decode", "seconds", 409600] == pytest.approx(0.0547, abs=5e-5)
    measured = goals(rows, h200).set_index(["goal_id", "protocol"])["measured"]
    for phase in ("prefill", "decode"):
        ours = rows[(rows["task"] == phase) & (rows["method"] == "wg_kv") & (rows["protocol"] == "paper")]
        ours = ours[(ours["model"] == h200.profile.models[0]) & (ours["component"] == "total")]
        ours = ours[ours["metric"] == "seconds"].set_index("n_tokens")["value"]
        worst = max(ours[n] / totals[phase, "seconds", n] for n in ours.index)
        assert measured[f"absolute_{phase}_llama", "paper"] == pytest.approx(worst)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows.drop(columns="value"), "value"),
        (lambda rows: rows[rows["model"] != QWEN], QWEN),
        (lambda rows: rows.replace({"n_tokens": {102400: "100K"}}), "100K"),
        (lambda rows: rows.assign(value=-rows["value"]), "not above zero"),
        (lambda rows: rows.mask(rows["method"] == "wg_kv", rows.assign(value=math.nan)), "missing or not"),
        (lambda rows: pd.concat([rows, rows]), "twice"),
    ],
)
def test_other_published_values_are_refused(h200, tmp_path, change, says):
    change(pd.read_csv(FILE)).to_csv(tmp_path / "published.csv", index=False)
    with pytest.raises(InputError, match=f"does not hold the published values .*{says}.*; restore it"):
        plotted(h200, tmp_path / "published.csv")


@pytest.mark.parametrize("name", PROFILE_FIGURES)
def test_figures(name, rows, h200, tmp_path):
    figure = PROFILE_FIGURES[name].make(rows, h200)
    assert figure.axes
    style.save(figure, tmp_path / "a.pdf", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
    with pytest.raises(InputError, match=r"no .*rows"):
        PROFILE_FIGURES[name].make(rows[rows["experiment"] == "none"], h200)


def test_figure_8_shows_failures_and_what_was_scaled(rows, h200):
    text = [t.get_text() for axes in PROFILE_FIGURES["figure_8"].make(rows, h200).axes for t in axes.texts]
    assert text.count(" OOM") == 1 and OOM[2] == 512000
    scaled = PROFILE_FIGURES["figure_8"].make(profile_rows(h200, layers_timed=4), h200)
    assert any(t.get_text().endswith("×*") for axes in scaled.axes for t in axes.texts)
    assert any(p.get_hatch() for axes in scaled.axes for p in axes.patches)


def test_the_table_of_ratios(rows, h200):
    frame, text = ratio_table(rows, h200)
    assert len(text.splitlines()) > len(frame) and "| – |" in text


@pytest.mark.parametrize(
    ("function", "parameters", "expected"),
    [
        ("speedup", {"phase": "prefill", "tokens": 409600}, 110 / 35.5),
        ("speedup", {"phase": "prefill", "tokens": "longest"}, 110 / 35.5),
        ("speedup", {"phase": "decode", "tokens": 409600, "component": "attention"}, 4),
        (
            "speedup",
            {"phase": "decode", "tokens": 409600, "protocol": "strongest_baseline", "component": "attention"},
            3,
        ),
        ("slowdown", {"phase": "prefill", "tokens": 204800, "component": "non_attention"}, 1.05),
        ("memory_saving", {"tokens": 204800}, 46.5),
        ("memory_saving", {"tokens": 204800, "protocol": "strongest_baseline"}, 46.5),
        ("time_share", {"phase": "prefill", "tokens": 409600}, 100 / 110),
        ("time_growth", {"phase": "prefill", "short": 204800, "long": 409600}, 4),
        ("time_share_rise", {"phase": "decode", "lengths": [204800, 409600]}, 0.1 / 0.11 - 0.05 / 0.06),
        ("cache_share_of_memory", {"tokens": 409600}, 0.77),
        ("saved_in_attention", {"phase": "prefill", "tokens": 409600}, 75 / 74.5),
        ("out_of_memory_from", {}, 500),
        ("out_of_memory_from", {"protocol": "strongest_baseline"}, 1000),
        ("longest_prefill", {}, 500),
        ("gate_parameters", {"tokens": 204800}, 0.421),
        ("gate_parameters", {"tokens": 204800, "protocol": "strongest_baseline"}, 0.421),
        ("fragmentation", {"tokens": 102400, "kind": "paged"}, 1.01),
        ("fragmentation", {"tokens": 102400, "kind": "preallocated"}, 1),
        ("kernel_error", {"kernel": "vertical_slash"}, 0.003),
    ],
    ids=str,
)
def test_queries_of_claims(rows, function, parameters, expected):
    evidence = Evidence(LLAMA, rows[rows["model"] == LLAMA])
    assert ask(evidence, function, parameters).value == pytest.approx(expected, rel=2e-2)


def test_memory_is_judged_by_the_rows_of_its_protocol(rows):
    baseline = (rows["protocol"] == "strongest_baseline") & (rows["component"] == "cache") & (rows["method"] == "full")
    own = rows[rows["model"] == LLAMA].assign(value=rows["value"].mask(baseline, 2 * rows["value"]))
    saved = [
        ask(Evidence(LLAMA, own), "memory_saving", {"tokens": 204800, "protocol": p}).value
        for p in ("paper", "strongest_baseline")
    ]
    assert saved[0] == pytest.approx(46.5, rel=2e-2) and saved[1] > saved[0] + 10


def test_the_ends_of_a_models_range_are_those_of_the_settings(h200):
    assert {model: said["tokens"] for model, said in h200.published.items()} == {m: list(n) for m, n in RANGE.items()}
    with pytest.raises(NoRows, match="range of tiny"):
        ask(Evidence("tiny", pd.DataFrame()), "speedup", {"phase": "prefill", "tokens": "shortest"})


def test_full_attention_fits_under_the_strongest_baseline_alone(rows):
    claim = next(claim for claim in claims() if claim.id == "wg-s53-full-attention-out-of-memory")
    frame = judge([claim], Measured("h200", {LLAMA: Evidence(LLAMA, rows)}, {"wg_kv": [LLAMA]}, {}), defaultdict(str))
    assert dict(zip(frame["protocol"], frame["verdict"], strict=True)) == {
        "paper": REPRODUCED,
        "strongest_baseline": CONTRADICTED,
    }


def test_claims_are_not_judged_on_some_of_the_layers(h200, rows):
    part = profile_rows(h200, layers_timed=4)
    with pytest.raises(NoRows):
        ask(Evidence(LLAMA, part[part["model"] == LLAMA]), "speedup", {"phase": "prefill", "tokens": 409600})
    with pytest.raises(NoRows):
        ask(Evidence(LLAMA, rows[rows["model"] == LLAMA]), "speedup", {"phase": "prefill", "tokens": 512000})
