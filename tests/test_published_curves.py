"""What WG-KV's authors plotted: which files are drawn, how they are read, and what figures show of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from synthetic_admission import admission_rows, local_cache_rows, pattern_rows
from synthetic_bounded import LIMITS, bounded_rows

from kvrepro.analysis import published
from kvrepro.analysis.published import LLAMA, QWEN, THINKING, available, downloads, read
from kvrepro.errors import InputError
from kvrepro.figures.admission import figure_7, figure_11, figure_12
from kvrepro.figures.bounded import figure_10, figure_16
from kvrepro.figures.patterns import figure_13
from kvrepro.figures.selection import figure_9
from kvrepro.products import FIGURES

CURVES = """panel_title,y_label,{size},method,score
Natural Questions,Accuracy,{points[0]},{methods[0]},50
Natural Questions,Accuracy,{points[1]},{methods[0]},40
Natural Questions,Accuracy,{points[1]},{methods[1]},30
NarrativeQA,GPT-4.1 Score,{points[0]},{methods[0]},1.5
"""
LOSSES = "lambda,threshold,distill_loss,kv_size\n0.02,0.05,0.01,0.5\n0.02,0.1,0.02,0.4\n0.64,0.1,0.1,0.1\n"
#: Files of their formats with numbers of our own.
WRITTEN = {
    "data/benchmark.csv": CURVES.format(size="kv_size", points=(1, 0.5), methods=("WG-KV", "Local Attention")),
    "data_qwen3_4b_2507/benchmark.csv": CURVES.format(size="kv_size", points=(1, 0.5), methods=("WG-KV", "AdaEA++")),
    "data/integration_0.08.csv": CURVES.format(
        size="kv_attended", points=(20000.5, 512), methods=("Quest Only", "WG-KV + Quest")
    ),
    "data/snapkv_no.csv": "lambda,avg_kv,seq_len,accuracy\nOff,9000,9100,0.9\n0.16,3000,9200,0.8\n2.56,90,9300,0.1\n",
    "data/snapkv_4096.csv": "lambda,avg_kv,seq_len,num_evict,accuracy\nOff,4100,9100,70,0.2\n0.16,4000,9200,NA,0.7\n",
    "data/threshold.csv": LOSSES,
    "data/threshold_local1.csv": LOSSES.replace("0.01,", "0.3,").replace("0.02,0.4", "0.4,0.4"),
    "data/gate_1.csv": ",".join(f"head_{n}" for n in range(8)) + "\n" + ",".join(["0.5"] * 8) + "\n",
    "data/gate_2.csv": ",".join(f"head_{n}" for n in range(8)) + "\n" + ",".join(["0.25"] * 8) + "\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in WRITTEN.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def shown(folder, figure: str, model: str = "lab-dense") -> pd.DataFrame:
    """What a figure of a model is given."""
    return read(available(FIGURES[figure].published, model, folder))


def dotted(axes) -> list:
    """Lines of an overlay with numbers, without the entry of the legend."""
    return [line for line in axes.get_lines() if line.get_linestyle() == ":" and len(line.get_xdata())]


def legend(axes) -> list[str]:
    return [label for label in axes.get_legend_handles_labels()[1] if "published" in label]


def note(figure) -> str:
    return figure.texts[-1].get_text().replace("\n", " ")


def test_every_file_is_pinned_by_commit_and_checksum():
    pinned = downloads()
    assert set(published.FILES) == set(WRITTEN) <= set(pinned)
    assert {name for figure in FIGURES.values() for name in figure.published} == set(WRITTEN)
    for name, source in pinned.items():
        assert len(source["sha256"]) == 64 and source["url"].endswith(f"/{name}")
        assert any(len(part) == 40 for part in source["url"].split("/"))


def test_a_model_has_its_own_curves_or_the_first_ones_beside_it(folder):
    helmet, losses = FIGURES["wg_kv_figure_7"].published, FIGURES["wg_kv_figure_12"].published
    for model, file in {LLAMA: "data", QWEN: "data_qwen3_4b_2507", "lab-dense": "data"}.items():
        assert available(helmet, model, folder) == [f"{folder}/{file}/benchmark.csv"]
    assert len(available(losses, LLAMA, folder)) == 2 and available(losses, "lab-dense", folder) == []
    assert available(FIGURES["figure_4b"].published, LLAMA, folder) == []
    (folder / losses[1]).unlink()
    assert available(losses, LLAMA, folder) == [] == available(helmet, LLAMA, folder / "none")


def test_scores_are_by_method_task_and_size_without_those_of_a_judge(folder):
    found = shown(folder, "wg_kv_figure_7")
    assert set(found["model"]) == {LLAMA}
    assert found[["task", "method", "size", "score"]].to_numpy().tolist() == [
        ["kilt_nq", "wg_kv", 1, 50],
        ["kilt_nq", "wg_kv", 0.5, 40],
        ["kilt_nq", "local_attention", 0.5, 30],
    ]
    assert set(shown(folder, "wg_kv_figure_9")["method"]) == {"quest", "wg_kv+quest"}


def test_rows_with_and_without_a_limit_stand_together(folder):
    found = shown(folder, "wg_kv_figure_10", THINKING)
    assert list(found["score"]) == [90, 80, 10, 20, 70] and list(found["evictions"]) == [0, 0, 0, 70, 0]
    assert list(found["limit"].isna()) == [True] * 3 + [False] * 2 and found["trade_off"].isna().sum() == 2
    assert shown(folder, "wg_kv_figure_12", LLAMA).groupby("local").size().to_dict() == {True: 3, False: 3}
    heads = shown(folder, "wg_kv_figure_13", LLAMA)
    assert list(heads["head"]) == [*range(8)] * 2 and set(heads["task"]) == {"code", "html_to_tsv"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data/benchmark.csv", "<html>Not Found</html>"),
        ("data/benchmark.csv", ""),
        ("data/benchmark.csv", WRITTEN["data/integration_0.08.csv"]),
        ("data/benchmark.csv", WRITTEN["data/benchmark.csv"].replace("WG-KV", "mine")),
        ("data/benchmark.csv", WRITTEN["data/benchmark.csv"].replace(",50", ",fifty")),
        ("data/benchmark.csv", WRITTEN["data/benchmark.csv"].replace(",50", ",")),
        ("data/snapkv_4096.csv", WRITTEN["data/snapkv_no.csv"]),
        ("data/gate_1.csv", WRITTEN["data/gate_1.csv"].replace("0.5,", ",", 1)),
        ("data/threshold.csv", "lambda,threshold,distill_loss,kv_size\n"),
    ],
)
def test_another_content_is_one_sentence(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=r"does not hold the published numbers .* published_curves\.$") as error:
        read([folder / name])
    assert name in str(error.value) and "\n" not in str(error.value)


def test_figure_7_shows_the_published_lines_in_panels_of_their_tasks(folder):
    rows = admission_rows("helmet", tasks=("kilt_nq", "narrativeqa")).assign(benchmark="helmet_stand_in")
    figure = figure_7(rows, lab=True, published=shown(folder, "wg_kv_figure_7"))
    mean, task, judged, last = figure.axes[:4]
    assert not dotted(mean) and not dotted(judged) and legend(task) == ["published, Llama-3.1-8B"]
    found = {line.get_color(): line for line in dotted(task)}
    own = {line.get_label(): line.get_color() for line in task.get_lines()}
    assert list(found[own["WG-KV"]].get_xdata()) == [0.5, 1] and list(found[own["WG-KV"]].get_ydata()) == [40, 50]
    assert "published, Llama-3.1-8B" in [text.get_text() for text in last.get_legend().get_texts()]
    assert "Llama-3.1-8B on HELMET at 32K tokens (another model and other contexts)" in note(figure)
    same = figure_7(rows.assign(model=LLAMA, benchmark="helmet"), published=shown(folder, "wg_kv_figure_7"))
    assert "at 32K tokens;" in note(same)
    qwen = figure_7(rows.assign(model=QWEN), published=shown(folder, "wg_kv_figure_7", QWEN))
    assert legend(qwen.axes[1]) == ["published, Qwen3-4B-2507"] and "(other contexts)" in note(qwen)


def test_figure_9_shows_the_published_lines_as_far_as_they_go(folder):
    rows = admission_rows("helmet", tasks=("kilt_nq",))
    figure = figure_9(rows, published=shown(folder, "wg_kv_figure_9"))
    assert [list(line.get_xdata()) for line in dotted(figure.axes[0])] == [[512, 20000.5], [512]]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()][-3:] == ["1024", "4096", "16384"]
    assert "published" in note(figure)


def test_figures_10_and_16_show_what_was_published_of_the_same_problems(folder):
    theirs = shown(folder, "wg_kv_figure_10")
    rows = bounded_rows(task="aime25")
    left, right = figure_10(rows, published=theirs).axes
    full, alone = (line for line in dotted(left) if line.get_marker() == "None")
    assert set(full.get_ydata()) == {90} and list(alone.get_xdata()) == [90, 3000]
    limited = [(*line.get_xdata(), *line.get_ydata()) for line in dotted(right)]
    assert limited == [(published.LIMIT, 70), (published.LIMIT, 0)]  # at the λ that was run
    accuracy, entries, evictions = figure_16(rows, published=theirs).axes
    assert [list(line.get_ydata()) for line in dotted(accuracy)] == [[90, 80]]  # no limit of ours is the paper's
    assert list(dotted(entries)[0].get_xdata()) == [0, 1] and not dotted(evictions)
    limit = rows.assign(options=rows["options"].str.replace(str(max(LIMITS)), str(published.LIMIT)))
    assert [list(line.get_ydata()) for line in dotted(figure_16(limit, published=theirs).axes[2])] == [[70, 0]]
    for figure in (figure_10, figure_16):
        assert not any(dotted(axes) for axes in figure(bounded_rows(), published=theirs).axes)


def test_figures_11_to_13_show_the_models_own(folder):
    rows = local_cache_rows()
    left, right = figure_11(rows, published=shown(folder, "wg_kv_figure_11", LLAMA)).axes
    assert sorted(len(line.get_xdata()) for line in dotted(left)) == [1, 2] and legend(left)
    assert [0.02, 0.64] in [list(line.get_xdata()) for line in dotted(right)]
    figure = figure_12(rows, published=shown(folder, "wg_kv_figure_12", LLAMA))
    assert [(line.get_xdata()[0], line.get_xdata()[-1]) for line in dotted(figure.axes[0])] == [(0.1, 0.5)] * 2
    assert "Dotted: published, Llama-3.1-8B." in note(figure)
    heads = figure_13(pattern_rows(), published=shown(folder, "wg_kv_figure_13", LLAMA))
    titles = [axes.get_title() for axes in heads.axes[:4]]
    assert titles[2] == "published\ncode: mean 0.50, CV 0.00"
    assert np.shape(heads.axes[3].get_images()[0].get_array()) == (1, 8)


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (figure_7, admission_rows("helmet", tasks=("kilt_nq",))),
        (figure_9, admission_rows("helmet", tasks=("kilt_nq",))),
        (figure_10, bounded_rows(task="aime25")),
        (figure_11, local_cache_rows()),
        (figure_12, local_cache_rows()),
        (figure_13, pattern_rows()),
        (figure_16, bounded_rows(task="aime25")),
    ],
)
def test_nothing_is_shown_without(make, rows):
    figure = make(rows)
    assert not any(dotted(axes) or legend(axes) for axes in figure.axes)
    assert "published" not in note(figure).replace("is not published", "").lower()
