"""The ledger with our numbers: one row a claim and model as CSV, and a Markdown page by paper and place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.names import LAB_LABELS
from kvrepro.benchmarks.registry import BENCHMARKS
from kvrepro.claims.evidence import Evidence, NoRows
from kvrepro.claims.ledger import Claim, query_functions
from kvrepro.claims.queries import ask, calls
from kvrepro.claims.verdicts import MEANING, NOT_BUILT, NOT_RUN, VERDICTS, about, verdict
from kvrepro.results import read_rows
from kvrepro.tables.markdown import line

COLUMNS = (
    "claim_id",
    "paper",
    "place",
    "statement",
    "published",
    "measured",
    "low",
    "high",
    "unit",
    "verdict",
    "protocol",
    "model",
    "hardware",
    "command",
)
#: Long columns that no claim reads
UNREAD = ["prediction", "prompt_sha256", "token_sha256", "finish_reason"]
PROTOCOLS = {"paper": "the paper's protocol", "strongest_baseline": "strongest baseline"}
TITLES = {"gatesight": "GateSight (arXiv 2610.14754)", "wg_kv": "WG-KV (arXiv 2512.17452)"}


@dataclass(frozen=True)
class Measured:
    """What one tier measured: rows per model, which models stand for which paper, and the hardware in words."""

    tier: str
    evidence: Mapping[str, Evidence]
    models: Mapping[str, Sequence[str]]  # paper -> models
    hardware: Mapping[str, str]  # model -> hardware


def measured(tier: str, paths: Iterable[str], models: Mapping[str, Sequence[str]]) -> Measured:
    """What result files of a tier hold. ``models`` are the tier's, by paper."""
    paths = list(paths)
    rows = read_rows(paths) if paths else pd.DataFrame({"model": [], "experiment": []})
    rows = rows.drop(columns=UNREAD, errors="ignore")
    named = {paper: list(models.get(paper, [])) for paper in TITLES}
    evidence: dict[str, Evidence] = {}
    evidence |= {m: Evidence(m, rows[rows["model"] == m], evidence) for names in named.values() for m in names}
    hardware: dict[str, set[str]] = {}
    for path in paths:
        model = next((m for m in evidence if f"/{m}/" in path or f"/{m}.parquet" in path), "")
        hardware.setdefault(model, set()).add(json.loads(Path(f"{path}.json").read_text())["hardware"])
    return Measured(tier, evidence, named, {m: ", ".join(sorted(h)) for m, h in hardware.items()})


def judge(claims: Sequence[Claim], measured: Measured, commands: Mapping[str, str]) -> pd.DataFrame:
    """A row per claim, model it was measured on and protocol it is judged under, with the columns COLUMNS.

    ``commands`` says what reproduces a tier. A tier that no claim names is asked every claim.

    Where a claim has several numbers, ``published``, ``measured``, ``low`` and ``high`` are JSON objects of them.
    """
    named = {tier for claim in claims for tier in claim.tiers}
    rows = [
        row
        for claim in claims
        for row in _rows(claim, measured, measured.tier in claim.tiers or measured.tier not in named, commands)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(claim: Claim, measured: Measured, asked: bool, commands: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    base = {
        "claim_id": claim.id,
        "paper": claim.paper,
        "place": claim.place,
        "statement": claim.statement,
        "published": _published(claim),
        "unit": claim.unit,
    }
    if claim.query is None or not _benchmarks(claim) <= set(BENCHMARKS):
        yield base | {"verdict": NOT_BUILT}
        return
    later = claim.tiers[claim.tiers.index(measured.tier) + 1 :] if measured.tier in claim.tiers else claim.tiers
    here, elsewhere = commands[measured.tier], commands[(later or claim.tiers)[0]]
    models = measured.models[claim.paper]
    asked_of = [m for m in models if m in claim.models] or models
    for model, protocol in product(asked_of, claim.protocols):
        found, complete = _ask(claim, measured.evidence[model], protocol) if asked else ({}, False)
        ruling = verdict(claim, found, model) if complete else NOT_RUN
        command = elsewhere if ruling == NOT_RUN else here
        numbers = {
            "measured": _cell({k: e.value for k, e in found.items()}),
            "low": _cell({k: e.low for k, e in found.items()}),
            "high": _cell({k: e.high for k, e in found.items()}),
        }
        where = {"model": model, "hardware": measured.hardware.get(model, "")} if found else {}
        under = {"protocol": protocol} if len(claim.protocols) > 1 else {}
        yield base | numbers | where | under | {"verdict": ruling, "command": command}


def _benchmarks(claim: Claim) -> set[str]:
    """Names of the benchmarks that a claim's query asks for."""
    return {call["benchmark"] for call in claim.query.calls().values() if "benchmark" in call}


def _ask(claim: Claim, evidence: Evidence, protocol: str) -> tuple[dict[str, Estimate], bool]:
    """The numbers that the rows can give, and whether these are all; ``protocol`` is for queries that take one."""
    found: dict[str, Estimate] = {}
    takes = "protocol" in query_functions()[claim.query.function]["properties"]
    try:
        wanted = calls(evidence, claim.query)
    except NoRows:
        return found, False
    for key, parameters in wanted.items():
        try:
            under = {"protocol": protocol} if takes else {}
            found[key] = ask(evidence, claim.query.function, under | parameters)
        except NoRows:
            continue
    return found, len(found) == len(wanted)


def _published(claim: Claim) -> Any:
    if isinstance(claim.published, int | float) or claim.published is None:
        return claim.published
    content = dict(claim.published) if isinstance(claim.published, Mapping) else list(claim.published)
    return json.dumps(content, ensure_ascii=False)


def _cell(values: Mapping[str, Any]) -> Any:
    """One number, a JSON object of several, or None; six digits are more than any of them has."""
    rounded = {key: float(f"{float(value):.6g}") for key, value in values.items()}
    if not rounded:
        return None
    return rounded[""] if "" in rounded else json.dumps(rounded)


def markdown(
    claims: Sequence[Claim], tiers: Mapping[str, pd.DataFrame], lab: Iterable[str], told: Sequence[str] = ()
) -> str:
    """The page for readers: a count of verdicts, then every claim by paper and place, a pair of columns a tier.

    ``tiers`` gives the judged frame per name of a tier; ``lab`` names the models to label as lab models; ``told`` are
    sentences about rows that do not belong together, which stand first.
    """
    lab = set(lab)
    parts = ["# Claims\n", *(f"**{sentence}**\n" for sentence in told), _explanation(tiers, lab), _counts(tiers, lab)]
    for paper, title in TITLES.items():
        parts.append(f"## {title}\n")
        of_paper = [claim for claim in claims if claim.paper == paper]
        for place in dict.fromkeys(claim.place for claim in of_paper):
            header = ["claim", "published", *(text for name in tiers for text in (f"{name}: measured", "verdict"))]
            rows = [_line(claim, tiers, lab) for claim in of_paper if claim.place == place]
            lines = [line(header), line(["---"] * len(header)), *map(line, rows)]
            parts.append(f"### {place}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _explanation(tiers: Mapping[str, pd.DataFrame], lab: set[str]) -> str:
    used = ", ".join(sorted({m for frame in tiers.values() for m in frame["model"].dropna() if m in lab}))
    labelled = (
        f"Lab models ({used}) are small and were trained for this suite: their numbers test the direction of a claim, "
        f"and are not the paper's. {LAB_LABELS} "
    )
    hardware = [
        f"{name}: {', '.join(sorted(set(frame['hardware'].dropna()) - {''})) or 'nothing measured'}"
        for name, frame in tiers.items()
    ]
    return (
        f"{labelled if used else ''}Numbers in brackets are 95 % bootstrap intervals. The command that reruns a claim "
        f"is in claims.csv. Hardware: {'; '.join(hardware)}.\n\n"
        + "".join(f"* **{name}**: {sentence}\n" for name, sentence in MEANING.items())
    )


def _counts(tiers: Mapping[str, pd.DataFrame], lab: set[str]) -> str:
    header = ["paper", "tier", "measured on", *VERDICTS, "claims"]
    rows = []
    for paper, title in TITLES.items():
        for name, frame in tiers.items():
            part = frame[frame["paper"] == paper]
            counts = part["verdict"].value_counts()
            total = str(part["claim_id"].nunique())
            models = ", ".join(f"{m}{', lab model' if m in lab else ''}" for m in part["model"].dropna().unique())
            rows.append([title, name, models or "–", *(str(counts.get(v, 0)) for v in VERDICTS), total])
    return (
        "\n".join([line(header), line(["---", "---", "---", *["---:"] * (len(VERDICTS) + 1)]), *map(line, rows)]) + "\n"
    )


def _line(claim: Claim, tiers: Mapping[str, pd.DataFrame], lab: set[str]) -> list[str]:
    cells = [f"{claim.statement} `{claim.id}`", _text(_published(claim), claim.unit)]
    for frame in tiers.values():
        found = frame[frame["claim_id"] == claim.id]
        cells += ["<br>".join(_measured(row, lab) for row in found.itertuples())]
        cells += ["<br>".join(_ruling(claim, row) for row in found.itertuples())]
    return cells


def _ruling(claim: Claim, row: Any) -> str:
    """The verdict, with the name of the model where the paper's statement is about another."""
    other = isinstance(row.model, str) and row.verdict != NOT_RUN and not about(claim, row.model)
    text = f"{row.verdict} on {row.model}" if other else row.verdict
    return f"{text} ({PROTOCOLS[row.protocol]})" if isinstance(row.protocol, str) else text


def _measured(row: Any, lab: set[str]) -> str:
    if not isinstance(row.model, str) or row.measured is None:
        return "–"
    text = _text(row.measured, row.unit)
    if not isinstance(row.measured, str):
        text += f" [{_number(row.low)}, {_number(row.high)}]"
    return f"{text} ({row.model}{', lab model' if row.model in lab else ''})"


def _text(value: Any, unit: str) -> str:
    """A number or several with their unit."""
    if value is None or value != value:
        return "–"
    if isinstance(value, str):
        content = json.loads(value)
        if isinstance(content, list):
            return " > ".join(content)
        return ", ".join(f"{key}: {_number(number)}" for key, number in content.items()) + f" {unit}"
    return f"{_number(value)} {unit}"


def _number(value: float) -> str:
    return f"{float(value):.3g}"
