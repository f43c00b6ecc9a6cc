"""Claims that count pairs, budgets and parts of a lead, over rows in which they hold and in which they do not."""

from __future__ import annotations

import pandas as pd
import pytest
from synthetic_rows import accuracy_rows, scbench_rows

from kvrepro.benchmarks import ruler, scbench
from kvrepro.claims.comparisons import NINE
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.ledger import claims
from kvrepro.claims.queries import ask
from kvrepro.claims.verdicts import verdict

MAIN, FLASH = "Qwen3.8-27B", "Qwen3.8-Flash-Next"
BEST = {"gatesight": 0.8, "snapkv": 0.5, "triattention": 0.6, "keydiff": 0.4, "kvzip": 0.7}
FIVE = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multiquery", "niah_multivalue")
OPTIONS = {"items": 10, "kept": (*NINE, 1.0), "n_tokens": 4000}


def evidence(methods=BEST, model: str = FLASH, changes=()) -> Evidence:
    """Rows of both benchmarks; each change is (method, tasks, kept fractions, value) of all items."""
    made = [
        accuracy_rows(methods, tasks=ruler.TASKS, model=model, **OPTIONS),
        scbench_rows(methods, 1.0, scbench.TASKS, model=model, **OPTIONS),
    ]
    rows = pd.concat(made, ignore_index=True)
    for method, tasks, kept, value in changes:
        where = (rows["method"] == method) & rows["task"].isin(tasks) & rows["budget"].isin(kept)
        rows.loc[where, "value"] = value
    return Evidence(model, rows)


def ruling(name: str, of: Evidence) -> str:
    entry = next(claim for claim in claims() if claim.id == name)
    found = {key: ask(of, entry.query.function, p) for key, p in entry.query.calls().items()}
    return verdict(entry, found, of.model)


def pairs(**others: Evidence) -> Evidence:
    tier = {each.model: each for each in others.values()}
    for each in tier.values():
        each.tier = tier
    return tier[MAIN]


def test_the_place_of_a_largest_lead_is_its_kept_fraction():
    """KVzip is made to lead most where it answers everything and GateSight nothing."""
    task = "niah_multikey_1"
    wide = [("kvzip", [task], [0.5], 1.0), ("gatesight", [task], [0.5], 0.0)]
    asked = {"a": "kvzip", "b": "gatesight", "benchmark": "ruler", "tasks": task}
    found = ask(evidence(changes=wide), "place_of_largest_lead", asked)
    assert found.value == found.low == found.high == 0.5
    assert ruling("gs-f12-largest-lead-on-multikey-1-at", evidence(changes=wide)) == "reproduced"
    other = [(method, [task], [0.7], value) for method, _, _, value in wide]
    assert ruling("gs-f12-largest-lead-on-multikey-1-at", evidence(changes=other)) == "contradicted"


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [((), "direction holds"), (("ruler",), "reproduced"), (("ruler", "scbench"), "direction holds")],
)
def test_pairs_are_counted_over_both_models(ahead, expected):
    """GateSight is best on all four pairs, but for those benchmarks of Flash-Next on which KeyDiff is made to be."""
    tasks = {"ruler": ruler.TASKS, "scbench": scbench.TASKS}
    changes = [("keydiff", tasks[name], [0.1], 1.0) for name in ahead]
    if "ruler" in ahead and "scbench" not in ahead:  # the two have tasks of one name
        changes.append(("gatesight", [t for t in scbench.TASKS if t in ruler.TASKS], [0.1], 1.0))
    both = pairs(main=evidence(model=MAIN), flash=evidence(changes=changes))
    assert ruling("gs-abs-best-on-three-of-four", both) == expected


def test_pairs_that_gatesight_nowhere_leads_contradict():
    worst = BEST | {"gatesight": 0.1}
    both = pairs(main=evidence(worst, MAIN), flash=evidence(worst))
    assert ruling("gs-abs-best-on-three-of-four", both) == "contradicted"


def test_pairs_need_the_rows_of_both_models():
    with pytest.raises(NoRows, match=FLASH):
        ruling("gs-abs-best-on-three-of-four", pairs(main=evidence(model=MAIN)))
    with pytest.raises(NoRows):
        ruling("gs-abs-best-on-three-of-four", evidence(model=MAIN))


@pytest.mark.parametrize(
    ("five", "others", "share", "expected"),
    [
        (0.81, 0.11875, 81, "reproduced"),  # 5 x 81 points of 5 x 81 + 8 x 11.875
        (0.8, 0.1, 100 * 400 / 480, "reproduced"),
        (0.8, 0.3, 100 * 400 / 640, "direction holds"),
        (0.1, 0.8, 100 * 50 / 690, "contradicted"),
        (0.5, 0.5, 100 * 5 / 13, "contradicted"),  # exactly their share, and not more
    ],
)
def test_a_part_of_the_lead_is_that_of_its_tasks(five, others, share, expected):
    """GateSight is always right; every answer of KVzip misses as much as GateSight is to lead by."""
    rest = [task for task in ruler.TASKS if task not in FIVE]
    changes = [("gatesight", ruler.TASKS, [0.1], 1.0)]
    changes += [("kvzip", FIVE, [0.1], 1 - five), ("kvzip", rest, [0.1], 1 - others)]
    of, name = evidence(model=MAIN, changes=changes), "gs-f11-five-tasks-share-of-gap"
    entry = next(claim for claim in claims() if claim.id == name)
    assert ask(of, entry.query.function, entry.query.calls()[""]).value == pytest.approx(share)
    assert ruling(name, of) == expected


def test_without_a_lead_it_has_no_parts():
    with pytest.raises(NoRows, match="a lead of gatesight over kvzip"):
        ruling("gs-f11-five-tasks-share-of-gap", evidence(BEST | {"kvzip": 0.9}, MAIN))


def test_kvzip_is_ahead_from_02_on():
    four = ("kv", "prefix_suffix", "repoqa_and_kv", "repoqa")
    ahead = evidence(changes=[("gatesight", four, NINE[1:], 0.0)])
    behind = evidence(changes=[("gatesight", four, NINE[1:], 0.0), ("gatesight", four, [0.7], 1.0)])
    for name in ("gs-f10-kvzip-ahead-from-02", "gs-f10-kvzip-ahead-on-repoqa"):
        assert ruling(name, ahead) == "reproduced"
        assert ruling(name, behind) == "contradicted"


def test_kvzip_leads_on_two_tasks_at_one_kept_fraction():
    level = [(method, ("fwe", "qa_2"), NINE, 1.0) for method in ("gatesight", "kvzip")]
    once = evidence(changes=[*level, ("gatesight", ("fwe", "qa_2"), [0.4], 0.0)])
    twice = evidence(changes=[*level, ("gatesight", ("fwe", "qa_2"), [0.4, 0.5], 0.0)])
    assert ruling("gs-f12-kvzip-ahead-once", once) == "reproduced"
    assert ruling("gs-f12-kvzip-ahead-once", twice) == "contradicted"
    assert ruling("gs-f12-kvzip-one-point-twice", once) == "contradicted"  # by a hundred points
    a_point = evidence(changes=level)
    a_point.rows.loc[(a_point.rows["method"] == "gatesight") & (a_point.rows["budget"] == 0.4), "value"] = 0.99
    assert ruling("gs-f12-kvzip-one-point-twice", a_point) == "reproduced"


def test_gatesight_is_below_99_on_four_tasks():
    four = ("niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
    below = evidence(changes=[("gatesight", four, NINE[:6], 0.5), ("gatesight", four, [0.7], 0.8)])
    above = evidence(changes=[("gatesight", four, NINE, 0.5), ("gatesight", four[:1], [0.6, 0.7], 1.0)])
    for name in ("gs-f12-gatesight-on-four-tasks", "gs-f12-gatesight-on-single-3"):
        assert ruling(name, below) == "reproduced"
        assert ruling(name, above) == "contradicted"


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("gs-app-a-official-qa-chn-deflates", "长江", "reproduced"),
        ("gs-app-a-official-qa-chn-deflates", "江", "contradicted"),  # a reference of one character
        ("gs-app-a-official-choice-reads-based-as-b", "Based on what is said, D.", "reproduced"),
        ("gs-app-a-official-choice-reads-based-as-b", "Certainly not the gardener.", "contradicted"),
    ],
)
def test_an_answer_is_scored_by_the_official_scorer(name, answer, expected):
    entry, of = next(claim for claim in claims() if claim.id == name), Evidence("m", pd.DataFrame())
    found = ask(of, entry.query.function, {**entry.query.parameters, "answer": answer})
    assert verdict(entry, {answer: found}, "m") == expected
    assert ruling(name, of) == "reproduced"
