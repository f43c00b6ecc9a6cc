"""Tables 2 and 8, the goals and the claims on the scoring cost, from rows and without any."""

from __future__ import annotations

import pandas as pd
import pytest
from synthetic_costs import benchmark_rows, with_gathering

from kvrepro.analysis.shape import derived_rows
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.ledger import claims
from kvrepro.claims.queries import ask
from kvrepro.claims.report import Measured, judge
from kvrepro.claims.verdicts import NOT_RUN
from kvrepro.products import SCORING_TABLES
from kvrepro.profiling import scoring
from kvrepro.profiling.scoring_inputs import geometry
from kvrepro.profiling.settings import load
from kvrepro.tables.goals import COLUMNS, goals, met
from kvrepro.tables.scoring import scoring_goals

SETTINGS = scoring.load()
MODEL = "Qwen3.8-27B"


def tidy(layers_timed: int | None = None, rows: pd.DataFrame | None = None) -> pd.DataFrame:
    found = benchmark_rows(SETTINGS, layers_timed) if rows is None else rows
    return pd.concat([scoring.rows_of(found, shape, "h200") for shape in SETTINGS.shapes.values()], ignore_index=True)


def counts(name: str) -> pd.DataFrame:
    return derived_rows(geometry(SETTINGS.shapes[name]), **SETTINGS.estimators, model=name, tier="h200")


def test_shapes_answer_what_follows_from_them_and_not_what_was_copied_from_the_paper():
    main = Evidence(MODEL, counts(MODEL))
    assert ask(main, "shape", {"quantity": "cache_per_token"}).value == 64
    assert ask(main, "window_value", {"window": 12, "metric": "inputs"}).value == 1731
    assert ask(Evidence("f", counts("Qwen3.8-Flash-Next")), "shape", {"quantity": "networks"}).value == 24
    for quantity in ("layers", "query_heads", "gdn_heads"):
        with pytest.raises(NoRows):
            ask(main, "shape", {"quantity": quantity})


@pytest.mark.parametrize("name", SCORING_TABLES)
def test_tables_show_published_values_beside_ours(name):
    frame, text = SCORING_TABLES[name].make(tidy(), SETTINGS)
    found = frame[frame["variant"] == ""].set_index(["method", "n_tokens"])
    for method in SETTINGS.methods:
        for place, tokens in enumerate(SETTINGS.lengths):
            row = found.loc[method, tokens]
            assert row["published"] == SETTINGS.published[name][method][place]
            assert row["measured"] == pytest.approx(row["published"] / 2)
    assert "0.246 / 0.123" in text if name == "table_2" else "0.175 / 0.087" in text or "0.175 / 0.088" in text
    assert "\\*" not in text and text.count("not run |") == 5  # with gathering


@pytest.mark.parametrize("name", SCORING_TABLES)
def test_without_rows_every_number_is_not_run(name):
    frame, text = SCORING_TABLES[name].make(scoring.no_rows(), SETTINGS)
    assert frame["measured"].isna().all() and frame["published"].notna().sum() == 25
    assert text.count("not run") >= 7 * 5 and "Ours were not run." in text


@pytest.mark.parametrize("name", SCORING_TABLES)
def test_gathering_has_a_row_of_its_own(name):
    found = benchmark_rows(SETTINGS)
    text = SCORING_TABLES[name].make(tidy(rows=found), SETTINGS)[1]
    line = next(x for x in text.splitlines() if "GateSight, with gathering" in x)
    assert line.count("not run") == 5 and "ours starts from gathered signals" in text
    ours = found[found["method"] == "gatesight"]
    made = ours.assign(variant=scoring.GATHERING, seconds=3 * ours["seconds"], extra_mib=2048.0)
    rows = tidy(rows=pd.concat([found, made]))
    frame, text = SCORING_TABLES[name].make(rows, SETTINGS)
    both = frame[frame["method"] == "gatesight"].pivot(index="n_tokens", columns="variant", values="measured")
    assert (both[scoring.GATHERING] == 3 * both[""]).all()
    line = next(x for x in text.splitlines() if "GateSight, with gathering" in x)
    assert "0.246 / 0.369" in line or "0.175 / 0.26" in line
    assert line.split("|")[-2].strip() == "2.00" and "not run" not in line
    goal = scoring_goals(rows, SETTINGS).set_index("goal_id")
    assert goal.loc["gatesight_scoring_seconds_with_gathering", "measured"] == pytest.approx(0.369)
    assert goal.loc["gatesight_scoring_seconds", "measured"] == pytest.approx(0.123)


def test_times_of_some_layers_are_marked():
    text = SCORING_TABLES["table_2"].make(tidy(layers_timed=8), SETTINGS)[1]
    assert "100.279 / 50.139\\*" in text or "100.279 / 50.140\\*" in text
    assert "0.246 / 0.123 |" in text and "Scaled up" in text


def test_a_model_that_was_not_come_to_has_a_row_without_a_value():
    found = benchmark_rows(SETTINGS)
    rows = tidy(rows=found[found["model"] == MODEL])
    other = rows[rows["model"] != MODEL]
    assert len(other) == 1 and other["value"].isna().all() and other["reason"].tolist() == ["not run"]
    text = SCORING_TABLES["table_8"].make(rows, SETTINGS)[1]
    assert "0.175 / not run" in text


def test_variants_and_failures_are_no_results():
    found = benchmark_rows(SETTINGS).query("method == 'gatesight' and tokens == 4096 and model == @MODEL")
    failed = found.assign(seconds=float("nan"), extra_mib=float("nan"), reason="OutOfMemoryError: no")
    rows = tidy(rows=pd.concat([failed, found.assign(variant="ieee", seconds=9.0)]))
    assert scoring.cost(rows, MODEL, "gatesight", 4096) is None
    assert (rows["reason"] == "OutOfMemoryError: no").sum() == 1


def test_goals_by_hand():
    found = scoring_goals(tidy(), SETTINGS)
    assert list(found) == COLUMNS and not found["goal_id"].duplicated().any()
    by = found.set_index("goal_id")
    assert by.loc["gatesight_scoring_seconds", "measured"] == pytest.approx(0.123)
    assert by.loc["gatesight_over_fastest", "measured"] == pytest.approx(0.246 / 0.084)
    assert "KeyDiff" in by.loc["gatesight_over_fastest", "what"]
    assert by.loc["kvzip_over_published", "measured"] == pytest.approx(0.5)
    assert by.loc["snapkv_over_published_flash_next", "measured"] == pytest.approx(0.5)
    assert "Flash-Next with SnapKV" in by.loc["snapkv_over_published_flash_next", "what"]
    assert by.loc["gatesight_scoring_memory", "measured"] == 1
    assert [met(by.loc[g, "measured"], by.loc[g, "goal"]) for g in by.index[:4]] == [False, None, False, True]
    empty = scoring_goals(scoring.no_rows(), SETTINGS)
    assert empty["measured"].isna().all() and len(empty) == len(found)
    assert (
        "scaled up from 8 of 64"
        in scoring_goals(tidy(8), SETTINGS).set_index("goal_id").loc["kvzip_over_published", "what"]
    )


def test_goals_of_the_profile_stand_beside_them_without_its_rows():
    found = goals(tidy(), load("h200"))
    assert len(found) > 20 and found["measured"].isna().all()


def test_queries_by_hand():
    rows = tidy()
    evidence = Evidence(MODEL, rows[rows["model"] == MODEL])
    assert ask(evidence, "scoring_seconds", {"method": "snapkv", "length": "256K"}).value == pytest.approx(0.226)
    growth = ask(evidence, "scoring_growth", {"method": "gatesight", "short": "64K", "long": "256K"})
    assert growth.value == pytest.approx(0.246 / 0.069)
    share = {"method": "gatesight", "length": "256K", "unit": "%"}
    assert ask(evidence, "scoring_over_prefill", share).value == pytest.approx(100 * 0.123 / 25.6)
    ratio = ask(evidence, "scoring_over_prefill", {"method": "kvzip", "length": "4K", "unit": "ratio"})
    assert ratio.value == pytest.approx(0.3735 / 0.4)
    with pytest.raises(NoRows, match="gatesight with gathering at 4K"):
        ask(evidence, "scoring_seconds", {"method": "gatesight", "length": "4K", "variant": scoring.GATHERING})
    part = tidy(layers_timed=4)
    with pytest.raises(NoRows):
        ask(Evidence(MODEL, part[part["model"] == MODEL]), "scoring_over_prefill", share)


def test_claims_on_the_scoring_cost_are_judged_from_rows_alone():
    mine = [c for c in claims() if c.query is not None and c.query.function.startswith("scoring_")]
    assert len(mine) == 18
    mine += [c for c in claims() if c.paper == "gatesight" and "h200" in c.tiers and c not in mine]
    counted = pd.concat([counts(name) for name in SETTINGS.shapes], ignore_index=True)
    named = {"gatesight": list(SETTINGS.shapes), "wg_kv": []}

    def judged(rows, about=mine):
        rows = pd.concat([rows, counted]) if len(rows) else rows
        evidence = {m: Evidence(m, rows[rows["model"] == m]) for m in SETTINGS.shapes}
        commands = {"h200": "here", "quick": "there", "lab": "there", "paper": "there"}
        return judge(about, Measured("h200", evidence, named, {}), commands)

    measured = tidy(rows=with_gathering(benchmark_rows(SETTINGS)))
    found = judged(measured).set_index("claim_id")
    assert found.loc["gs-t2-gatesight", "verdict"] == "direction holds"  # half the published time is not its value
    assert found.loc["gs-t2-gatesight", "command"] == "here" and (found["verdict"] != NOT_RUN).all()
    shapes = [c.id for c in mine if not c.query.function.startswith("scoring_")]
    assert len(shapes) == 8 and set(found.loc[shapes, "verdict"]) == {"reproduced"}
    none = judged(scoring.no_rows())
    assert (none["verdict"] == NOT_RUN).all() and none["measured"].isin(["", None]).all()
    every = judged(measured, [c for c in claims() if c.paper == "gatesight"])
    answered = every[every["measured"].fillna("") != ""]["claim_id"]
    assert set(found.index) <= set(answered)
