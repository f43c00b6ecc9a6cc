"""What trainings take: rows of made-up runs and what claims make of them."""

from __future__ import annotations

import pandas as pd
import pytest

from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.ledger import claims
from kvrepro.claims.queries import ask
from kvrepro.claims.verdicts import verdict
from kvrepro.results import SCHEMA
from kvrepro.training.cost import cost_rows

FLASH, LLAMA = "Qwen3.8-Flash-Next", "Llama-3.1-8B-Instruct"
H200 = "one NVIDIA H200"


def evidence(what: str, model: str, runs, hardware: str = H200) -> Evidence:
    where = {"paper": "wg_kv", "tier": "paper", "model": model}
    rows = [row for number, run in enumerate(runs) for row in cost_rows(what, run, {"seed": number}, hardware, **where)]
    return Evidence(model, SCHEMA.validate(pd.DataFrame(rows)))


def ruling(name: str, of: Evidence) -> str:
    entry = next(claim for claim in claims() if claim.id == name)
    return verdict(entry, {"": ask(of, entry.query.function, entry.query.calls()[""])}, of.model)


@pytest.mark.parametrize(
    ("name", "what", "model", "runs", "expected"),
    [
        ("gs-app-h-training-time", "estimators", FLASH, [{"seconds": 720}], "reproduced"),
        ("gs-app-h-training-time", "estimators", FLASH, [{"seconds": 60}], "direction holds"),
        ("gs-app-h-training-time", "estimators", FLASH, [{"seconds": 1800}], "contradicted"),
        ("wg-app-c-training-time", "write_gates", LLAMA, [{"seconds": 18000}, {"seconds": 25000}], "reproduced"),
        ("wg-app-c-training-time", "write_gates", LLAMA, [{"seconds": 36000}, {"seconds": 25000}], "contradicted"),
        ("wg-app-c-tokens", "write_gates", LLAMA, [{"tokens": 65.5e6}], "reproduced"),
        ("wg-app-c-tokens", "write_gates", LLAMA, [{"tokens": 30e6}], "contradicted"),
    ],
)
def test_a_training_took_as_long_as_published_or_not(name, what, model, runs, expected):
    assert ruling(name, evidence(what, model, runs)) == expected


def test_lambdas_that_trained_together_share_their_time():
    where = {"paper": "wg_kv", "tier": "paper", "model": LLAMA}
    runs = [cost_rows("write_gates", {"seconds": 7 * 21600}, {"seed": 0, "together": 7}, H200, **where)[0]] * 7
    assert ruling("wg-app-c-training-time", Evidence(LLAMA, SCHEMA.validate(pd.DataFrame(runs)))) == "reproduced"


def test_a_training_of_another_model_or_on_another_device_says_nothing():
    runs = [{"seconds": 720, "tokens": 63e6}]
    for name, what, model in (
        ("gs-app-h-training-time", "estimators", FLASH),
        ("wg-app-c-training-time", "write_gates", LLAMA),
    ):
        with pytest.raises(NoRows, match=model):
            ruling(name, evidence(what, "lab-dense", runs))
        with pytest.raises(NoRows, match="H200"):
            ruling(name, evidence(what, model, runs, "2 CPU cores"))
    assert ruling("wg-app-c-tokens", evidence("write_gates", LLAMA, runs, "2 CPU cores")) == "reproduced"
    with pytest.raises(NoRows):
        ruling("wg-app-c-tokens", evidence("estimators", LLAMA, runs))
