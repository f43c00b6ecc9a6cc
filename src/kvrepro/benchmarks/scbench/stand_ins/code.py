"""Code: functions of the Python standard library, asked for by what their documentation says."""

from __future__ import annotations

from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.scbench.stand_ins.draft import TURNS, Draft, Request, needle, needle_question, spread
from kvrepro.benchmarks.scbench.stand_ins.sources import LANG, Function
from kvrepro.errors import InputError

REPOSITORY = "python-standard-library"
ASK = "Function description: {description}.\n\nFunction:"
SHORTAGE = "the functions of the sources do not fill the length: pass more of them"


def _library(request: Request) -> tuple[list[Function], list[Function]]:
    """The functions that are asked for, and all others in random order, those that could be asked for first."""
    own, rng = request.sources.functions, request.rng("functions")
    if len(own) < TURNS:
        raise InputError(f"the code tasks ask for {TURNS} documented functions, and the sources have {len(own)}.")
    chosen = rng.sample(own, len(own))
    return chosen[:TURNS], chosen[TURNS:] + rng.sample(
        request.sources.more_functions, len(request.sources.more_functions)
    )


def _turn(function: Function) -> dict:
    return {"input": ASK.format(description=function.description), "answer": function.code, "name": function.name}


def repoqa(request: Request) -> Draft:
    """Functions in random order, each asked for by the first sentence of its documentation."""
    asked, others = _library(request)

    def row(n: int) -> dict:
        shown = [*asked, *others[: n - TURNS]]
        request.rng("order").shuffle(shown)
        return {
            "context": "\n\n\n".join(function.code for function in shown),
            "repo": REPOSITORY,
            "lang": LANG,
            "multi_turns": [_turn(function) for function in asked],
        }

    return Draft(row, TURNS, TURNS + len(others), SHORTAGE)


def repoqa_and_kv(request: Request) -> Draft:
    """The same with lines between the functions that give UUIDs for UUIDs; keys and functions are asked for in turn."""
    asked, others = _library(request)
    rng, taken = request.rng("keys"), set()
    pairs = [tuple(draws.uuid4(rng, request.split, taken) for _ in range(2)) for _ in range(2)]

    def row(n: int) -> dict:
        shown = [*asked[:2], *others[: n - 2]]
        request.rng("order").shuffle(shown)
        lines = spread([f.code for f in shown], [needle("uuids", *pair) for pair in pairs], f"{request.key}/places")
        keys = [{"task": "scbench_kv", "input": needle_question("uuids", key), "answer": value} for key, value in pairs]
        wanted = [{"task": "scbench_repoqa"} | _turn(function) for function in asked[:2]]
        return {
            "context": "\n\n\n".join(lines),
            "repo": REPOSITORY,
            "lang": LANG,
            "multi_turns": [keys[0], wanted[0], keys[1], wanted[1]],
        }

    return Draft(row, 2, 2 + len(others), SHORTAGE)
