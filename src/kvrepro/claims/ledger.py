"""The ledger of claims: ``config/claims/*.yaml``, checked and as objects.

``workflow/schemas/claims.schema.yaml`` says what each key means, how a claim is judged and which query functions exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from kvrepro.errors import InputError, unknown
from kvrepro.yamlfile import StrictLoader

CLAIMS = Path("config/claims")
SCHEMA = Path("workflow/schemas/claims.schema.yaml")

EVERY = "every"  #: in the place of values: every corpus of the rows but those that the query names itself
PREFIXES = {"gatesight": "gs-", "wg_kv": "wg-"}


def _places(
    sections: Mapping[int, int], tables: int, figures: int, panels: Mapping[int, str], appendices: Mapping[str, int]
) -> frozenset[str]:
    """The names of a paper's places; sections and appendices give the number of their subsections."""
    return frozenset(
        ["Abstract"]
        + [f"§{n}" for n in sections]
        + [f"§{n}.{sub}" for n, count in sections.items() for sub in range(1, count + 1)]
        + [f"Table {n}" for n in range(1, tables + 1)]
        + [f"Figure {n}{panel}" for n in range(1, figures + 1) for panel in ("", *panels.get(n, ""))]
        + [f"Appendix {letter}" for letter in appendices]
        + [f"Appendix {letter}.{sub}" for letter, count in appendices.items() for sub in range(1, count + 1)]
    )


PLACES = {
    "gatesight": _places(
        sections={1: 0, 2: 0, 3: 3, 4: 3, 5: 6, 6: 0, 7: 0},
        tables=8,
        figures=13,
        panels={1: "abc", 2: "abcd", 4: "abcd", 6: "abcd", 8: "ab"},
        appendices=dict.fromkeys("ABCDEFGHI", 0),
    ),
    "wg_kv": _places(
        sections={1: 0, 2: 4, 3: 3, 4: 3, 5: 4, 6: 0},
        tables=1,
        figures=16,
        panels={1: "abc", 2: "ab", 5: "ab", 6: "abcd", 8: "abc", 13: "ab", 16: "ab"},
        appendices=dict.fromkeys("ABCDEFGHIJK", 0) | {"I": 3, "J": 2, "K": 2},
    ),
}


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the published one: ``absolute`` in the claim's unit, or ``relative`` to it."""

    why: str
    absolute: float | None = None
    relative: float | None = None

    def margin(self, published: float) -> float:
        """The largest distance from ``published`` that still reproduces it, in the claim's unit."""
        return self.absolute if self.absolute is not None else self.relative * abs(published)


@dataclass(frozen=True)
class Query:
    """A function of ``kvrepro.claims.queries`` with its parameters, called once for each value of ``over``."""

    function: str
    parameters: Mapping[str, Any]
    over: str | None = None
    values: tuple[str | float, ...] = ()

    def calls(self) -> dict[str, dict[str, Any]]:
        """The parameters of each call, by the key that the result has in ``published`` ("" for the one call)."""
        if self.over is None:
            return {"": dict(self.parameters)}
        return {str(value): {**self.parameters, self.over: value} for value in self.values}


@dataclass(frozen=True)
class Claim:
    """One statement of a paper; the fields are those of the schema."""

    id: str
    paper: str
    place: str
    also: tuple[str, ...]
    models: tuple[str, ...]
    statement: str
    published: float | Mapping[str, float] | tuple[str, ...] | None
    unit: str
    kind: str
    tolerance: Tolerance | None
    direction: Mapping[str, float] | None
    query: Query | None
    note: str | None
    protocols: tuple[str, ...]
    tiers: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """All places that make the statement, the main one first."""
        return (self.place, *self.also)


def claims(directory: str | Path = CLAIMS, schema: str | Path = SCHEMA) -> list[Claim]:
    """All claims of all files of ``directory`` in file order; InputError names the file and the claim at fault."""
    files = sorted(Path(directory).glob("*.yaml"))
    if not files:
        raise InputError(f"{directory} holds no claim files; run from the root of the repository.")
    found: dict[str, Claim] = {}
    for file in files:
        for claim in _read(file, _schema(Path(schema))):
            if claim.id in found:
                raise InputError(f"{file}: claim {claim.id!r} exists twice; give one of them another id.")
            found[claim.id] = claim
    return list(found.values())


def query_functions(schema: str | Path = SCHEMA) -> dict[str, dict[str, Any]]:
    """The declared query functions: ``description``, ``required`` and ``properties`` of each, by name."""
    return _schema(Path(schema))["$defs"]["query_functions"]


def _yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), StrictLoader)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); run from the root of the repository.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise InputError(f"{path}{where}: not valid YAML ({problem}); correct it.") from error


@cache
def _schema(path: Path) -> dict[str, Any]:
    return _yaml(path)


def _read(file: Path, schema: dict[str, Any]) -> list[Claim]:
    ledger = _yaml(file)
    error = _error(ledger, schema, schema)
    if error is not None:
        path = list(error.absolute_path)
        where = str(file)
        if path[:1] == ["claims"] and len(path) > 1:
            claim = ledger["claims"][path[1]]
            where += (
                f": claim {claim.get('id', path[1] + 1)!r}" if isinstance(claim, dict) else f": claim {path[1] + 1}"
            )
            path = path[2:]
        raise _fault(error, where, path)
    tolerances = {name: Tolerance(**raw) for name, raw in ledger["tolerances"].items()}
    return [
        _claim(raw, ledger["paper"], tolerances, schema, f"{file}: claim {raw['id']!r}") for raw in ledger["claims"]
    ]


def _error(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> jsonschema.ValidationError | None:
    """The most telling way in which ``value`` breaks ``part``, a schema that may refer to definitions of ``schema``."""
    validator = jsonschema.Draft202012Validator({**part, "$defs": schema["$defs"]})
    return jsonschema.exceptions.best_match(validator.iter_errors(value))


def _fault(error: jsonschema.ValidationError, where: str, path: list[str | int]) -> InputError:
    key = ".".join(map(str, path))
    return InputError(f"{where}{', ' if key else ''}{key}: {error.message} (see {SCHEMA}).")


def _claim(
    raw: dict[str, Any], paper: str, tolerances: dict[str, Tolerance], schema: dict[str, Any], where: str
) -> Claim:
    keys = schema["$defs"]["claim"]["properties"]
    raw = {key: value["default"] for key, value in keys.items() if "default" in value} | raw
    if not raw["id"].startswith(PREFIXES[paper]):
        raise InputError(f"{where}: an id of {paper} starts with {PREFIXES[paper]!r}; rename it.")
    for place in (raw["place"], *raw["also"]):
        if place not in PLACES[paper]:
            raise unknown("place", place, PLACES[paper], where)
    if raw["tolerance"] is not None and raw["tolerance"] not in tolerances:
        raise unknown("tolerance", raw["tolerance"], tolerances, where)
    published = raw["published"]
    if raw["kind"] == "range" and published.get("low", -float("inf")) > published.get("high", float("inf")):
        raise InputError(f"{where}: low is above high; swap them.")
    query = None if raw["query"] is None else _query(raw["query"], schema, where)
    if query is not None and raw["kind"] != "range" and isinstance(published, (dict, list)):
        given, computed = sorted(published), sorted(query.calls())
        if given != computed:
            raise InputError(f"{where}: published names {given} but the query computes {computed}; make them agree.")
    return Claim(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
        | {"paper": paper, "tolerance": tolerances.get(raw["tolerance"]), "query": query}
    )


def _query(raw: dict[str, Any], schema: dict[str, Any], where: str) -> Query:
    functions = schema["$defs"]["query_functions"]
    if raw["function"] not in functions:
        raise unknown("query function", raw["function"], functions, where)
    signature = functions[raw["function"]]
    strict = {key: signature[key] for key in ("required", "properties")} | {"additionalProperties": False}
    fixed = {key: value for key, value in raw.items() if key not in ("function", "over")}
    over, values = next(iter(raw.get("over", {}).items()), (None, ()))
    if over in fixed:
        raise InputError(f"{where}: query gives {over} both a value and a place in over; keep one.")
    query = Query(raw["function"], fixed, over, (EVERY,) if values == EVERY else tuple(values))
    for parameters in query.calls().values():
        error = _error(parameters, strict, schema)
        if error is not None:
            raise _fault(error, f"{where}, query", list(error.absolute_path))
    return query
