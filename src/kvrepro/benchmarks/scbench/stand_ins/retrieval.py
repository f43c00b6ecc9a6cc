"""String retrieval: kv, prefix_suffix, vt, and the keys that the mixed tasks hide."""

from __future__ import annotations

import json

from kvrepro.benchmarks.ruler import draws
from kvrepro.benchmarks.ruler.definitions import task as ruler_task
from kvrepro.benchmarks.ruler.definitions import wording
from kvrepro.benchmarks.ruler.problem import growing
from kvrepro.benchmarks.ruler.tracing import chain, noise_with
from kvrepro.benchmarks.scbench.stand_ins.draft import (
    TURNS,
    Draft,
    Request,
    needle,
    needle_instruction,
    needle_question,
)


def kv(request: Request) -> Draft:
    """A JSON object whose texts are RULER's needles, UUID to UUID, in random order."""
    rng, taken = request.rng("pairs"), set()
    pairs = growing(lambda: (draws.uuid4(rng, request.split, taken), draws.uuid4(rng, request.split, taken)))

    def row(n: int) -> dict:
        shown = pairs(n)
        request.rng("order").shuffle(shown)
        entries = {str(number): needle("uuids", *pair) for number, pair in enumerate(shown, 1)}
        turns = [{"input": needle_question("uuids", key), "answer": value} for key, value in pairs(TURNS)]
        return {"context": json.dumps(entries, indent=0), "multi_turns": turns}

    return Draft(row, smallest=TURNS)


def prefix_suffix(request: Request) -> Draft:
    """UUIDs, each after its first and last group of digits; the question names those."""
    rng, taken = request.rng("strings"), set()
    strings = growing(lambda: draws.uuid4(rng, request.split, taken))

    def ends(text: str) -> str:
        return f"{text[:8]}-{text[-12:]}"

    def row(n: int) -> dict:
        shown = strings(n)
        request.rng("order").shuffle(shown)
        lines = [needle_instruction("uuids"), *(needle("uuids", ends(text), text) for text in shown)]
        turns = [{"input": needle_question("uuids", ends(text)), "answer": text} for text in strings(TURNS)]
        return {"context": "\n".join(lines), "multi_turns": turns}

    return Draft(row, smallest=TURNS)


def vt(request: Request) -> Draft:
    """RULER's variable tracking as published: one chain and one question, since the lab models follow no more."""
    definition, rng, taken = ruler_task("vt"), request.rng("chain"), set()
    options = definition.options
    letters, hops = options["name_letters"], options["hops"]
    names = [draws.variable_name(rng, request.split, letters, taken) for _ in range(hops + 1)]
    value = draws.integer(rng, request.split, options["value_low"], options["value_high"])
    words = wording(definition, query=value, num_v=hops + 1)

    def row(n: int) -> dict:
        text = words.instruction + noise_with([chain(names, value)], n, request.rng("places"))
        return {"input": text, "multi_turns": [{"input": words.question + words.answer_prefix, "answer": names}]}

    return Draft(row, smallest=hops + 1)
