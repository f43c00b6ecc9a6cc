"""Figures and tables from synthetic rows: what they read, what they leave out, what they say when rows are missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from synthetic_admission import admission_rows, local_cache_rows, pattern_rows, validation_rows
from synthetic_bounded import bounded_rows
from synthetic_observations import observation_rows
from synthetic_rows import KEPT, TASKS, accuracy_rows, predictor_rows, scbench_rows

from kvrepro.analysis import bootstrap, summary
from kvrepro.analysis.accuracy import accuracy, unanswered
from kvrepro.config import load
from kvrepro.errors import InputError
from kvrepro.figures import style
from kvrepro.figures.accuracy import figure_4b, figure_11
from kvrepro.figures.predictors import figure_5, figure_8
from kvrepro.figures.style import benchmark_title
from kvrepro.products import FIGURES, TABLES
from kvrepro.tables.accuracy import mean_accuracy, task_accuracy
from kvrepro.tables.markdown import interval
from kvrepro.tables.predictors import table_1, table_5

METHODS = {"gatesight": 0.75, "random": 0.25}
ITEM = ["task", "item", "method", "budget"]


@pytest.fixture(scope="module")
def rows():
    return accuracy_rows(METHODS)


@pytest.fixture(scope="module")
def predictors():
    return predictor_rows()


@pytest.fixture(scope="module")
def known(rows, predictors):
    """The rows of every kind that products read."""
    observed = observation_rows()
    both = pd.concat([predictors, observed], ignore_index=True)
    scbench = scbench_rows(METHODS)
    accurate = pd.concat([rows, admission_rows(model="lab-hybrid")]).drop_duplicates(ITEM)
    return {
        "accuracy": pd.concat([accurate, scbench], ignore_index=True),
        "ruler": accurate,
        "scbench": scbench,
        "helmet": admission_rows("helmet", tasks=("kilt_nq", "narrativeqa"), model="lab-hybrid"),
        "longproc": accuracy_rows(METHODS, tasks=("html_to_tsv_2k",), benchmark="longproc"),
        "predictors": predictors,
        "observations": both,
        "gates": observed,
        "write_gates": validation_rows(),
        "local_cache": local_cache_rows(),
        "patterns": pattern_rows(),
        "reasoning": bounded_rows(),
        "primitives": pd.concat([pattern_rows(), admission_rows()], ignore_index=True),
        "goals": pd.concat([validation_rows(), admission_rows(), bounded_rows()], ignore_index=True),
    }


# Bootstrap


def test_means_are_over_units_and_then_over_blocks():
    blocks = [np.array([[0.0, 1.0]] * 10), np.array([[1.0, np.nan]] * 10 + [[1.0, 0.0]] * 10)]
    found = bootstrap.mean(blocks)
    assert found.value == pytest.approx([0.5, 0.5])
    assert (found.low == found.value).all() and (found.high == found.value).all()


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        found = bootstrap.mean([(rng.random((60, 1)) < 0.3).astype(float)], seed=trial)
        hits += bool(found.low[0] <= 0.3 <= found.high[0])
    assert 180 <= hits <= 199


def test_a_difference_is_taken_on_the_same_units():
    x = np.random.default_rng(0).random((40, 1))
    found = bootstrap.mean([np.hstack([x, x - 0.1])]).map(lambda v: v[..., 0] - v[..., 1])
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1)


def test_few_units_are_resampled_over_all_blocks():
    blocks = [np.array([[1.0], [1.0]]) for _ in range(6)] + [np.array([[0.0], [0.0]])]
    found = bootstrap.mean(blocks)
    assert found.value[0] == pytest.approx(6 / 7) and found.units == 14
    assert found.low[0] < 6 / 7 < found.high[0]


# Accuracy


def test_accuracy_is_the_mean_over_items_and_tasks(rows):
    table = accuracy(rows).table().set_index(["method", "budget"])["accuracy"]
    assert table["gatesight", 0.1] == pytest.approx(75)
    assert table["random", 0.1] == pytest.approx(25)
    assert table["dense", 1.0] == table["gatesight", 1.0] == 100


def test_rows_that_failed_a_check_are_counted_and_not_averaged(rows):
    marked = rows.copy()
    wrong = (marked["method"] == "gatesight") & (marked["budget"] == 0.1) & (marked["value"] == 0)
    marked.loc[wrong, ["ok", "failed_checks"]] = [False, "kept_entries"]
    result = accuracy(marked)
    assert result.failed == wrong.sum() > 0
    assert result["gatesight", 0.1].value == 100
    text = mean_accuracy(marked)[1]
    assert f"{wrong.sum()} of {len(rows)} rows failed a check; all {result.excluded} rows of their items" in text


def test_all_series_of_a_task_are_averaged_over_the_same_items(rows):
    marked = rows.copy()
    wrong = (marked["method"] == "gatesight") & (marked["budget"] == 0.1) & (marked["value"] == 0)
    marked.loc[wrong, "ok"] = False  # the harder items, which the other method must lose too
    result = accuracy(marked)
    lost = marked.loc[wrong, ["task", "item"]].drop_duplicates()
    assert result.excluded == len(rows.merge(lost)) > wrong.sum()
    assert result["random", 0.1].value == pytest.approx(100 / 3) and accuracy(rows)["random", 0.1].value == 25
    pair = accuracy(marked, series=[("random", 0.1), ("random", 0.5)])  # where that method does not come in
    assert pair.excluded == 0 and pair["random", 0.1].value == 25


def test_an_item_needs_all_its_questions(rows):
    two = pd.concat([rows, rows.assign(question=1, ok=(rows["item"] != 0) | (rows["method"] != "gatesight"))])
    assert accuracy(two).items == 11


def test_questions_weigh_the_same_and_so_do_the_sub_tasks_of_a_mixed_task():
    rows = accuracy_rows({}, tasks=("kv",), items=12, kept=(1.0,)).query("method == 'dense'")
    right = rows.assign(value=1.0)
    uneven = [right.assign(question=n)[right["item"] < 6] for n in (1, 2)]  # half of the contexts ask three questions
    first = rows.assign(value=(rows["item"] < 6).astype(float))
    assert accuracy(pd.concat([first, *uneven]))["dense", 1.0].value == pytest.approx(100 * 18 / 24)
    mixed = [first.assign(subtask="one"), *(part.assign(subtask="other", value=0.0) for part in uneven)]
    found = accuracy(pd.concat(mixed))["dense", 1.0]
    assert found.value == pytest.approx(25)  # a half in one part, nothing in the other; by question it were 6 of 24
    assert found.low < 25 < found.high <= 50
    whole = [part.assign(value=1.0) for part in mixed]
    assert accuracy(pd.concat(whole))["dense", 1.0].low == pytest.approx(100)  # sizes alone make no interval
    few = accuracy(pd.concat([part[part["item"].isin([0, 1, 7])] for part in mixed])[lambda x: x["item"] < 9])
    assert few["dense", 1.0].value == pytest.approx((2 / 3 + 0) / 2 * 100)


def test_tasks_of_one_name_on_two_benchmarks_are_not_mixed(rows, known):
    with pytest.raises(InputError, match=r"several benchmarks \(ruler, scbench\)"):
        accuracy(known["accuracy"], ["vt"])
    frame, text = TABLES["table_3"].make(known["accuracy"].replace({"method": {"random": "kvzip"}}))
    assert set(frame["benchmark"]) == {"ruler", "scbench"} and "SCBench stand-ins" in text and "RULER" in text


def test_a_task_whose_rows_all_failed_is_never_dropped_from_the_mean(rows):
    with pytest.raises(InputError, match="all accuracy rows of task vt failed a check"):
        accuracy(rows.assign(ok=rows["task"] != "vt"))
    half = rows.assign(ok=(rows["task"] != "vt") | (rows["method"] != "gatesight") | (rows["budget"] != 0.1))
    result = accuracy(half)
    assert np.isnan(result["gatesight", 0.1].value) and result["random", 0.1].value == pytest.approx(25)
    assert np.isnan(result["gatesight", 0.1].low) and result.gaps == ("gatesight at 0.1 in vt",)
    assert result.excluded == result.failed == 12
    assert "Without a valid row: gatesight at 0.1 in vt." in mean_accuracy(half)[1]
    figure_4b(half), figure_11(half)


def test_the_median_is_that_of_documents_drawn_again():
    values = np.arange(12.0)
    found = bootstrap.median(values)
    assert found.value == 5 and found.units == 12  # the lower of the two in the middle
    assert 1 <= found.low <= 4 and 6 <= found.high <= 10


def repeated(rows: pd.DataFrame, times: int) -> pd.DataFrame:
    """Every item ``times`` times, as HELMET asks a question with its passages in other orders."""
    first = rows.assign(item=rows["item"] * times, unit=rows["item"] * times)
    return pd.concat([first.assign(item=first["item"] + n) for n in range(times)], ignore_index=True)


def test_items_that_repeat_a_question_make_no_interval_narrower(rows):
    """Rows of the other tasks do not say what repeats, as those of earlier versions."""
    once, others = accuracy(rows), rows[rows["task"] != TASKS[0]]
    several = pd.concat([repeated(rows[rows["task"] == TASKS[0]], 6), others], ignore_index=True)
    found = accuracy(several)
    pd.testing.assert_frame_equal(found.table(), once.table())
    assert (found.items, found.units, accuracy(several, [TASKS[0]]).items) == (12, 12, 72)
    assert "over items, those of one question or context as one. A kept" in mean_accuracy(several)[1]
    assert "over items. A kept" in mean_accuracy(rows)[1]


def test_a_unit_weighs_as_many_items_as_passed_their_checks(rows):
    several = repeated(rows[(rows["task"] == TASKS[0]) & (rows["item"] < 2)], 4)
    several["value"] = (several["unit"] == 0).astype(float)
    several.loc[(several["item"] == 7) & (several["method"] == "random"), "ok"] = False
    found = accuracy(several)
    assert found["gatesight", 0.1].value == pytest.approx(100 * 4 / 7) and (found.items, found.units) == (7, 2)


def test_missing_rows_are_a_clear_error(rows):
    with pytest.raises(InputError, match="no accuracy rows; run"):
        accuracy(rows[:0])
    with pytest.raises(InputError, match="no accuracy rows of task cwe"):
        accuracy(rows, ["cwe"])
    with pytest.raises(InputError, match="no accuracy rows of kvzip"):
        accuracy(rows, series=[("kvzip", 0.1)])
    with pytest.raises(InputError, match="several models"):
        accuracy(pd.concat([rows, rows.assign(model="other")]))
    with pytest.raises(InputError, match="all accuracy rows of task niah_single_1 failed"):
        accuracy(rows.assign(ok=False))


# Figures


def lines(axes) -> dict:
    return {line.get_label(): line for line in axes.get_lines()}


def test_figure_4b_shows_every_method_and_the_unpruned_model(rows):
    figure = figure_4b(rows, lab=True)
    found = lines(figure.axes[0])
    assert set(found) == {"no prune", "GateSight", "random"}
    assert list(found["GateSight"].get_xdata()) == list(KEPT)
    assert found["GateSight"].get_ydata() == pytest.approx([75, 84, 100], abs=4)
    assert "lab model" in figure.axes[0].get_title()


def test_a_method_nobody_listed_gets_its_own_line_and_always_the_same_look(rows):
    more = accuracy_rows(METHODS | {"toy": 0.5})
    found = lines(figure_4b(more).axes[0])["toy"]
    assert found.get_color() == style.look("toy").color != style.look("other toy").color
    assert lines(figure_4b(rows).axes[0])["random"].get_color() == lines(figure_4b(more).axes[0])["random"].get_color()


def test_listed_looks_differ_in_color_and_marker():
    for known in (style.METHODS, style.PREDICTORS):
        elsewhere = ("wg_kv", "duo_attention", "quest", "wg_kv+quest", "wg_kv+snapkv")  # in the other paper's figures
        gatesight = {n: v for n, v in known.items() if n not in elsewhere}
        looks = [(look.color, look.marker) for look in gatesight.values()]
        assert len(set(looks)) == len(looks)
        assert not {look.color for look in known.values()} & set(style.SPARE_COLORS)


@pytest.mark.parametrize("tier", ["lab", "paper"])
def test_every_method_of_gatesight_is_called_by_its_name_and_has_a_color_of_its_own(tier):
    methods = load({"tier": tier})["experiments"]["gatesight"]["methods"]
    looks = [style.METHODS[name] for name in ("dense", *methods)]
    assert len({look.color for look in looks}) == len({look.label for look in looks}) == len(looks)
    assert ("l2_norm" in methods) == (tier == "lab") and style.METHODS["l2_norm"].label == "L2 norm"


def test_figure_11_has_a_panel_per_task(rows):
    figure = figure_11(rows)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[: len(TASKS)] == list(TASKS)


def test_figure_8_separates_the_predictors_by_layer(predictors):
    figure = figure_8(predictors)
    assert [list(axes.get_xticks()) for axes in figure.axes] == [[3, 7, 11]] * 2
    assert len(figure.axes[0].containers) == len(style.PREDICTORS)


def test_figure_5_names_layer_and_correlation(predictors):
    figure = figure_5(predictors, lab=True)
    assert "attention layer 11" in figure.axes[0].get_title()
    assert "+0.40" in figure.texts[0].get_text()


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_twice_alike(name, known, tmp_path):
    product = FIGURES[name]
    paths = []
    for turn in ("a", "b"):
        pdf, png = tmp_path / f"{turn}.pdf", tmp_path / f"{turn}.png"
        style.save(product.make(known[product.reads], lab=True), str(pdf), str(png))
        paths.append((pdf.read_bytes(), png.read_bytes()))
    assert paths[0] == paths[1]
    assert paths[0][0].startswith(b"%PDF") and len(paths[0][1]) > 5000


@pytest.mark.parametrize("name", [*FIGURES, *TABLES])
def test_without_rows_there_is_one_sentence(name, known):
    product = (FIGURES | TABLES)[name]
    with pytest.raises(InputError, match="run the target"):
        product.make(known[product.reads][:0])


def test_a_table_says_which_judge_was_not_run(known):
    text = TABLES["helmet_tasks"].make(known["helmet"])[1]
    assert text.count("No judge was run: narrativeqa by ROUGE-L F1.") == text.count("No judge") == 1
    assert "No judge" not in TABLES["longproc_tasks"].make(known["longproc"])[1]


def test_figures_of_scbench_are_those_of_ruler_on_other_rows(known):
    figure = FIGURES["figure_4a"].make(known["scbench"], lab=True)
    assert "SCBench stand-ins" in figure.axes[0].get_title() and "RULER" not in figure.axes[0].get_title()
    found, ruler = lines(figure.axes[0]), lines(figure_4b(known["ruler"]).axes[0])
    assert found["GateSight"].get_ydata() == pytest.approx(ruler["GateSight"].get_ydata())
    assert found["GateSight"].get_color() == ruler["GateSight"].get_color()
    titles = [axes.get_title() for axes in FIGURES["figure_9"].make(known["scbench"]).axes]
    assert titles[:4] == ["kv", "vt", "choice_eng", "repoqa_and_kv"]


def test_what_the_unpruned_model_cannot_answer_is_said(known):
    rows = known["scbench"].copy()
    rows.loc[rows["task"].isin(["vt", "choice_eng"]) & (rows["item"] > 0), "value"] = 0  # one item of twelve is right
    assert unanswered(rows) == ("vt", "choice_eng") and unanswered(known["scbench"]) == ()
    said = "Unpruned, the model scores below 10 % on vt, choice_eng: no method has much to lose there."
    for text in (
        mean_accuracy(rows)[1],
        FIGURES["figure_9"].make(rows).texts[-1].get_text().replace("\n", " "),
        TABLES["scbench_scorers"].make(rows)[1],
    ):
        assert said in text
    assert task_accuracy(rows)[1].count("Unpruned, the model scores") == 2
    assert "Unpruned" not in mean_accuracy(known["ruler"])[1]


# Tables


def test_ruler_table_lists_unpruned_model_first_and_marks_the_best(rows):
    frame, text = mean_accuracy(rows, lab=True)
    assert list(frame["method"].unique()) == ["dense", "gatesight", "random"]
    assert "**75.0** [" in text and "lab-hybrid (lab model)" in text and "| no prune |" in text
    assert set(frame.columns) >= {"method", "budget", "accuracy", "low", "high", "tasks", "items", "excluded"}


def test_ruler_tasks_table_has_every_task(rows):
    frame, text = task_accuracy(rows)
    assert list(frame["task"].unique()) == list(TASKS)
    assert all(f"## {task}" in text for task in TASKS)


def test_table_1_is_a_part_of_table_5(predictors):
    short, _ = table_1(predictors)
    whole, text = table_5(predictors)
    merged = short.merge(whole, on="predictor", suffixes=("", " whole"))
    assert len(merged) == len(short) == 6 and len(whole) == 13
    assert (merged["spearman"] == merged["spearman whole"]).all()
    assert "| per-head MLP (GateSight) | **+0.659**" in text


def test_overlaps_are_shown_in_percent(predictors):
    frame = summary.table(summary.predictor_rows_of(predictors), ["mlp"])
    assert frame.loc[0, "overlap@10"] == pytest.approx(100 * frame.loc[0, "spearman"])


def test_cells():
    assert interval(0.5432, 0.5, 0.6, 3, sign=True, best=True) == "**+0.543** [+0.500, +0.600]"
    assert interval(-0.001, -0.001, float("nan")) == "0.0 [0.0, –]"


def test_a_title_names_the_tasks_that_are_no_stand_ins():
    rows = pd.DataFrame({"experiment": "helmet", "task": ["kilt_nq", "banking77"], "n_tokens": 1000})
    said = rows.assign(benchmark=["helmet_stand_in", "helmet"])
    assert benchmark_title(said) == "HELMET stand-ins (banking77: published)"
    assert benchmark_title(said[:1]) == "HELMET stand-ins" and benchmark_title(said[1:]) == "HELMET"
