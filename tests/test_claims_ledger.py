"""The claim ledger: complete, consistent, and clear about faults."""

import re
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from kvrepro import config
from kvrepro.analysis.names import ABLATION, FIVE_TASKS
from kvrepro.claims import ledger
from kvrepro.claims.comparisons import NINE
from kvrepro.claims.evidence import TASKS
from kvrepro.claims.latency import LATENCY_QUERIES
from kvrepro.claims.scoring import SCORING_QUERIES
from kvrepro.errors import InputError

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / ledger.SCHEMA

# Numbered tables and figures, appendices and sections that make a statement one can check. The others describe:
# Figure 3 of GateSight draws the method, and the related work and the set-up sections hold no result.
WITH_STATEMENTS = {
    "gatesight": [
        *(f"Table {n}" for n in range(1, 9)),
        *(f"Figure {n}" for n in range(1, 14) if n != 3),
        *("Figure 4a", "Figure 4b", "Figure 4c", "Figure 4d"),
        *(f"Appendix {letter}" for letter in "ABCDEFGH"),
        *(
            "Abstract",
            "§1",
            "§2",
            "§3.1",
            "§3.2",
            "§3.3",
            "§4.1",
            "§4.2",
            "§4.3",
            "§5.2",
            "§5.3",
            "§5.4",
            "§5.5",
            "§5.6",
        ),
    ],
    "wg_kv": [
        "Table 1",
        *(f"Figure {n}" for n in range(1, 17)),
        *(f"Appendix {letter}" for letter in "BCFGHIJK"),
        *(
            "Abstract",
            "§1",
            "§2.1",
            "§2.2",
            "§2.3",
            "§2.4",
            "§3.1",
            "§3.2",
            "§3.3",
            "§4.2",
            "§4.3",
            "§5.2",
            "§5.3",
            "§5.4",
        ),
    ],
}


@pytest.fixture(scope="module")
def claims():
    return ledger.claims(ROOT / ledger.CLAIMS, SCHEMA)


@pytest.fixture
def edited(tmp_path):
    """Loads the ledger after a replacement in one of its files."""

    def load(file, old, new):
        directory = tmp_path / "claims"
        shutil.copytree(ROOT / ledger.CLAIMS, directory)
        text = (directory / file).read_text()
        assert old in text
        (directory / file).write_text(text.replace(old, new, 1))
        return ledger.claims(directory, SCHEMA)

    return load


def test_holds_every_statement_of_both_papers(claims):
    counts = Counter(claim.paper for claim in claims)
    assert counts["wg_kv"] >= 38
    assert counts["gatesight"] >= 85


@pytest.mark.parametrize("paper", WITH_STATEMENTS)
def test_every_place_with_a_statement_has_a_claim(claims, paper):
    named = {place for claim in claims if claim.paper == paper for place in claim.places}
    covered = (
        named
        | {place.rstrip("abcd") for place in named}
        | {place.partition(".")[0] for place in named if place[0] == "A"}
    )
    assert [place for place in WITH_STATEMENTS[paper] if place not in covered] == []


def test_ids_and_statements_are_unique(claims):
    assert [i for i, n in Counter(claim.id for claim in claims).items() if n > 1] == []
    assert [s for s, n in Counter((claim.paper, claim.statement) for claim in claims).items() if n > 1] == []


def test_claims_about_accuracy_name_a_length_and_leave_the_quick_tier_out(claims):
    on_ruler = [claim for claim in claims if claim.query and claim.query.parameters.get("benchmark") == "ruler"]
    asked = [claim for claim in on_ruler if claim.query.function.startswith("accuracy_")]
    assert len(asked) >= 5
    assert [c.id for c in asked if c.query.parameters.get("length") != 4096 or "quick" in c.tiers] == []


def test_claims_name_tiers_that_exist_smallest_first(claims):
    order = [t for t in ("quick", "lab", "h200", "paper") if t == "h200" or (ROOT / f"config/tiers/{t}.yaml").exists()]
    assert [c.id for c in claims if list(c.tiers) != [t for t in order if t in c.tiers]] == []


def wanting(call: dict, function: str, settings: dict) -> list:
    """What a call of a query asks for and a tier lacks: fractions, tasks, methods, windows, sets and a sparse model."""
    experiment, seen, budgets = settings["experiments"]["gatesight"], settings["observations"], settings["budgets"]
    sets = {"1K", *(f"{x['tokens'] // 1024}K" for x in seen["sets"]), f"ruler_{seen['ruler']['length'] // 1024}K"}
    words = [str(call[key]) for key in ("cell", "step") if key in call]
    windows = [int(w) for text in words for w in re.findall(r"\b(?:to_)?(\d+)\b", text)]
    asked, there = [], set()
    if function in ABLATIONS:
        kept = [call.get("kept", "mean")] if function in ("allocation_value", "allocation_gap") else ["mean"]
        asked += [f for k in kept for f in (NINE if k == "mean" else (k,))]
        names = [call["task"]] if "task" in call else ABLATION[call["benchmark"]]
        asked += TASKS[call["benchmark"]] if function == "allocation_gap" else names
        there = {*budgets["kept"], *chain(*budgets["tasks"].values())}
    elif function in OF_APPENDIX_D:
        asked = [*([call["kept"]] if "kept" in call else []), *FIVE_TASKS]
        asked += [float(call["cell"].split()[1])] if function == "budget_cell" else []
        asked += [call["length"]] if "length" in call else []
        ruler = {**settings["benchmarks"]["ruler"], "tasks": budgets["tasks"]["ruler"], **budgets.get("ruler", {})}
        there = {*budgets["kept"], *ruler["tasks"], ruler["length"]}
    elif function.startswith("window_") and function != "window_cost":
        asked = [*windows, *(int(call[key]) for key in ("window", "base") if key in call)]
        asked += [windows[0] - 3] if function == "window_gain_per_layer" else []
        there = {*seen["windows"], settings["estimators"]["window"]}
    elif function.startswith("length_"):
        asked = [call["documents"] if "documents" in call else call["cell"].split()[1]]
        asked += FIVE_TASKS if "task" in call else []
        there = {*sets, *seen["ruler"]["tasks"]}
    elif "benchmark" in call and function not in EVERY_ITEM:
        kept = call.get("kept", "mean")
        kept = NINE if kept == "mean" else kept if isinstance(kept, list) else [kept]
        tasks = call.get("tasks", TASKS[call["benchmark"]])
        asked = [*kept, *([tasks] if isinstance(tasks, str) else tasks)]
        asked += [*(call[key] for key in ("a", "b", "method") if key in call), *call.get("others", [])]
        there = {*experiment["kept"], *experiment["methods"], *settings["benchmarks"][call["benchmark"]]["tasks"]}
    elif function == "index_keys":
        asked, there = ["Qwen3.8-Flash-Next"], set(experiment["models"])
    return [x for x in asked if x not in there]


ABLATIONS = ("allocation_value", "allocation_lead", "allocation_lead_over", "allocation_gap", "allocation_spread")
OF_APPENDIX_D = (
    "budget_cell",
    "budget_by_layer",
    "exponent_value",
    "gate_in_score",
    "closed_layers",
    "closed_layers_loss",
)
EVERY_ITEM = ("identity_rate", "budget_error", "cache_share", "index_keys")  # of whatever was asked


def test_tiers_have_what_their_claims_ask_for(claims):
    lacking = {}
    for tier in ("quick", "lab", "paper"):
        settings = config.load({"tier": tier})
        for claim in claims:
            if claim.paper == "gatesight" and claim.query and tier in claim.tiers:
                asked = claim.query.calls().values()
                if missing := [x for call in asked for x in wanting(call, claim.query.function, settings)]:
                    lacking[claim.id, tier] = missing
    assert lacking == {}


def test_what_a_profile_measures_is_asked_of_the_profile_alone(claims):
    names = {query.__name__ for query in (*LATENCY_QUERIES, *SCORING_QUERIES)}
    profiled = [claim for claim in claims if claim.query and claim.query.function in names]
    assert len(profiled) > 40 and {claim.tiers for claim in profiled} == {("h200",)}


def test_published_numbers_meet_their_own_weaker_statement(claims):
    """A number that fails the direction given for it betrays a wrong sign or a wrong bound."""
    tests = {
        "greater_than": lambda x, y: x > y,
        "at_least": lambda x, y: x >= y,
        "less_than": lambda x, y: x < y,
        "at_most": lambda x, y: x <= y,
        "at_least_published": lambda x, y: x >= y * x,
        "at_most_published": lambda x, y: x <= y * x,
    }
    for claim in claims:
        if claim.kind in ("value", "range") and claim.direction:
            numbers = claim.published.values() if isinstance(claim.published, dict) else [claim.published]
            for number in numbers:
                assert all(tests[word](number, bound) for word, bound in claim.direction.items()), (claim.id, number)


def test_every_tolerance_is_used(claims):
    for paper, file in (("gatesight", "gatesight.yaml"), ("wg_kv", "wg_kv.yaml")):
        used = {claim.tolerance.why for claim in claims if claim.paper == paper and claim.tolerance}
        declared = {tolerance["why"] for tolerance in ledger._yaml(ROOT / ledger.CLAIMS / file)["tolerances"].values()}
        assert used == declared


def test_values_of_the_text(claims):
    """Some numbers of the papers, typed here again."""
    published = {claim.id: claim.published for claim in claims}
    assert published["gs-t1-mlp-ov10"] == 41.0
    assert published["gs-t1-ridge-rho"] == 0.548
    assert published["gs-t3-27b-ruler-gatesight"] == {"0.7": 97.4, "0.4": 91.9, "0.1": 76.6, "mean": 91.5}
    assert published["gs-app-b-closed-form"] == {"high": 1.4e-5}
    assert published["gs-t2-kvzip"]["256K"] == 100.279
    assert published["wg-f8a-prefill-speedup"] == {"low": 3.03, "high": 3.45}
    assert published["wg-f10-eviction-alone"] == 26.7


def test_differences_in_the_notes_are_right(claims):
    """A note that is a subtraction gives the published number."""
    differences = [claim for claim in claims if claim.note and claim.note.count(" - ") == 1 and claim.note[0].isdigit()]
    assert len(differences) >= 6
    for claim in differences:
        a, b = map(float, claim.note.split(" - "))
        assert claim.published == pytest.approx(a - b, abs=1e-9), claim.id


def test_query_over_several_values_gives_one_call_each(claims):
    claim = next(claim for claim in claims if claim.id == "gs-t3-27b-ruler-gatesight")
    calls = claim.query.calls()
    assert list(calls) == ["0.7", "0.4", "0.1", "mean"] == list(claim.published)
    assert calls["0.1"] == {"method": "gatesight", "benchmark": "ruler", "length": 4096, "kept": 0.1}
    single = next(claim for claim in claims if claim.id == "gs-t1-mlp-ov10").query
    assert single.calls() == {"": {"predictor": "mlp", "metric": "overlap@10"}}


def test_tolerances():
    assert ledger.Tolerance("points", absolute=1.5).margin(60.0) == 1.5
    assert ledger.Tolerance("about", relative=0.1).margin(-42.0) == pytest.approx(4.2)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("wg_kv.yaml", "paper: wg_kv", "paper: [", "wg_kv.yaml, line .*not valid YAML"),
        ("wg_kv.yaml", "paper: wg_kv", "paper: wgkv", "paper: 'wgkv' is not one of"),
        ("wg_kv.yaml", "kind: range", "kind: rnage", "claim 'wg-abs-memory', kind: 'rnage' is not one of"),
        ("wg_kv.yaml", "    unit: ratio\n", "", "claim 'wg-abs-prefill-speedup': 'unit' is a required property"),
        ("wg_kv.yaml", "place: Abstract", "place: Abstrakt", "claim 'wg-abs-memory': place 'Abstrakt'.*'Abstract'"),
        ("wg_kv.yaml", "tiers: [h200]", "tiers: [h100]", "claim 'wg-abs-memory', tiers.0: 'h100'"),
        ("wg_kv.yaml", "tolerance: memory", "tolerance: memry", "claim 'wg-abs-memory': tolerance 'memry'.*'memory'"),
        ("wg_kv.yaml", "low: 46, high: 68", "low: 68, high: 46", "claim 'wg-abs-memory': low is above high"),
        ("wg_kv.yaml", "published: {low: 46, high: 68}", "published: many", "claim 'wg-abs-memory', published"),
        ("wg_kv.yaml", "unit: ratio", "unit: ratio\n    unit: s", "wg_kv.yaml, line .*unit is given twice"),
        ("wg_kv.yaml", "wg-abs-decode-speedup", "wg-abs-memory", "claim 'wg-abs-memory' exists twice"),
        ("wg_kv.yaml", "id: wg-abs-memory", "id: gs-abs-memory", "claim 'gs-abs-memory': an id of wg_kv starts"),
        ("gatesight.yaml", "function: gate_span", "function: gate_spam", "query function 'gate_spam'.*'gate_span'"),
        (
            "gatesight.yaml",
            "statistic: ratio",
            "statistic: mean",
            "gs-abs-gate-spread-across-layers', query, statistic",
        ),
        ("gatesight.yaml", "statistic: ratio", "statistik: ratio", "gs-abs-gate-spread-across-layers', query: "),
        ("gatesight.yaml", "kept: [0.7, 0.4, 0.1, mean]", "kept: [0.7, 0.4, mean]", "published names .* but the query"),
        ("gatesight.yaml", "statistic: [min, max]}", "statistic: [min, max]}, statistic: min", "keep one"),
    ],
)
def test_a_fault_names_file_and_claim(edited, file, old, new, message):
    with pytest.raises(InputError, match=message) as caught:
        edited(file, old, new)
    assert file in str(caught.value)


def test_missing_files(tmp_path):
    with pytest.raises(InputError, match="holds no claim files"):
        ledger.claims(tmp_path, SCHEMA)
    with pytest.raises(InputError, match="cannot be read"):
        ledger.claims(ROOT / ledger.CLAIMS, tmp_path / "no.yaml")
