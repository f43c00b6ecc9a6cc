"""Reading in English: questions and choices about generated people and towns, and summaries of documents about them."""

from __future__ import annotations

from collections.abc import Iterator

from kvrepro.benchmarks.ruler import draws, facts
from kvrepro.benchmarks.ruler.problem import growing
from kvrepro.benchmarks.scbench.stand_ins.draft import (
    TURNS,
    Draft,
    Request,
    needle,
    needle_question,
    spread,
)

SUMMARY_SENTENCES = 8  # of prose around the facts of a document
ASK_SUMMARY = "Please write a summary of the document about {town}, based on the documents above."


def _worlds(request: Request):
    rng, taken = request.rng("worlds"), set()
    return growing(lambda: facts.world(rng, request.split, taken))


def _book(worlds: list[facts.World], request: Request) -> str:
    paragraphs = [text for world in worlds for text in (world.person, world.town)]
    request.rng("order").shuffle(paragraphs)
    return "\n\n".join(paragraphs)


def _queries(worlds: list[facts.World], request: Request) -> list[facts.Query]:
    rng = request.rng("queries")
    return [rng.choice(world.person_queries + world.town_queries + world.two_hop) for world in worlds]


def qa_eng(request: Request) -> Draft:
    """A book of facts, a paragraph a person or town; one question about each of the first five."""
    worlds = _worlds(request)
    queries = _queries(worlds(TURNS), request)

    def row(n: int) -> dict:
        turns = [{"input": query.question, "answer": query.answer} for query in queries]
        return {"context": _book(worlds(n), request), "multi_turns": turns}

    return Draft(row, smallest=TURNS)


def choice_eng(request: Request) -> Draft:
    """The same book; the other options answer the same question about other people and towns."""
    worlds = _worlds(request)
    rng = request.rng("options")
    turns = []
    for world in worlds(TURNS):
        index = rng.randrange(3)
        query = world.person_queries[index]
        others = (facts.world(rng, request.split).person_queries[index].answer for _ in range(1000))
        options = _four(query.answer, others)
        rng.shuffle(options)
        turns.append({"input": query.question, "answer": query.answer, "options": options})

    def row(n: int) -> dict:
        return {"context": _book(worlds(n), request), "multi_turns": turns}

    return Draft(row, smallest=TURNS)


def _four(answer: str, others: Iterator[str]) -> list[str]:
    """``answer`` and three different others."""
    options = [answer]
    while len(options) < 4:
        other = next(others)
        if other not in options:
            options.append(other)
    return options


def _documents(request: Request, n: int):
    """``n`` titled documents, each the facts of a town and of one born there among sentences of prose."""
    worlds = _worlds(request)(n)
    prose, rng = request.sources.prose, request.rng("prose")
    starts = [rng.randrange(len(prose)) for _ in range(n)]
    texts, turns = [], []
    for number, (world, start) in enumerate(zip(worlds, starts, strict=True), 1):
        sentences = [text if text.endswith(".") else f"{text}." for text in f"{world.town} {world.person}".split(". ")]
        filler = [prose[(start + i) % len(prose)] for i in range(SUMMARY_SENTENCES)]
        town = world.town_queries[0].question.removeprefix("In which county is ").removesuffix("?")
        body = request.rng(f"body {number}")
        places = sorted(body.sample(range(len(filler) + len(sentences)), len(sentences)))
        merged = list(filler)
        for place, sentence in zip(places, sentences, strict=True):
            merged.insert(place, sentence)
        texts.append(f"Document {number}: {town}\n" + " ".join(merged))
        if number <= TURNS:
            turns.append({"input": ASK_SUMMARY.format(town=town), "answer": " ".join(sentences)})
    return texts, turns


def summary(request: Request) -> Draft:
    """Documents about towns; the summary of one is its facts in their order."""

    def row(n: int) -> dict:
        texts, turns = _documents(request, n)
        return {"context": "\n\n".join(texts), "multi_turns": turns[: TURNS - 2]}

    return Draft(row, smallest=TURNS - 2)


def summary_with_needles(request: Request) -> Draft:
    """The same documents with pass keys between them; summaries and pass keys are asked for in turn."""
    rng, taken = request.rng("keys"), set()
    keys = [(request.word_pair(rng, taken), draws.number(rng, request.split, taken)) for _ in range(2)]
    passkeys = [
        {"task": "scbench_passkey", "input": needle_question("numbers", key), "answer": value} for key, value in keys
    ]

    def row(n: int) -> dict:
        texts, turns = _documents(request, n)
        lines = spread(texts, [needle("numbers", *key) for key in keys], f"{request.key}/places")
        summaries = [{"task": "scbench_summary"} | turn for turn in turns[:2]]
        asked = [passkeys[0], summaries[0], passkeys[1], summaries[1]]
        return {"context": "\n\n".join(lines), "multi_turns": asked}

    return Draft(row, smallest=2)
