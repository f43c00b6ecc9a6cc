"""Long documents: questions and choices about people in a story, and summaries of what a text tells of them."""

from __future__ import annotations

from collections.abc import Callable

from kvrepro.benchmarks.helmet.stand_ins.draft import Draft, prose, worlds
from kvrepro.benchmarks.ruler import facts
from kvrepro.benchmarks.ruler.problem import Request, scatter

PEOPLE = 4  # that a text tells of
DEMOS = 2
OPTIONS = 4


def _told(request: Request, paragraphs: list[str], n: int, purpose: str = "story") -> str:
    """``paragraphs``, in their order, among ``n`` sentences of prose."""
    return " ".join(scatter(prose(request, n, purpose), paragraphs, request.rng(f"{purpose} places")))


def story(request: Request) -> Draft:
    """A question about a person or a town, in the form of NarrativeQA."""
    return _questions(
        request,
        lambda number, query, text: {
            "document": {"text": text},
            "question": {"text": query.question},
            "answers": [{"text": query.answer}],
        },
    )


def book(request: Request) -> Draft:
    """The same in the form of InfiniteBench."""
    return _questions(
        request,
        lambda number, query, text: {"id": number, "context": text, "input": query.question, "answer": [query.answer]},
    )


def _questions(request: Request, form: Callable[[int, facts.Query, str], dict]) -> Draft:
    """Questions about people and towns of one text; ``form`` puts number, question and text into a row."""
    known, rng = worlds(request), request.rng("queries")
    asked = [rng.choice(world.person_queries + world.town_queries) for world in known(DEMOS + 1)]
    paragraphs = [text for world in known(PEOPLE) for text in (world.person, world.town)]

    def demos(n: int) -> list[dict]:  # a demonstration shows no text
        return [form(number, asked[number], "-") for number in range(1, DEMOS + 1)]

    return Draft(lambda n: form(0, asked[0], _told(request, paragraphs, n)), demos, smallest=0)


def choice(request: Request) -> Draft:
    """A question about a person with four options, of which three answer it for other people."""
    known, rng = worlds(request), request.rng("options")
    paragraphs = [text for world in known(OPTIONS) for text in (world.person, world.town)]
    rows = []
    for number in range(DEMOS + 1):
        index = rng.choice((0, 2))  # of birthplace and spouse, which differ from person to person
        options = [world.person_queries[index].answer for world in known(OPTIONS)]
        query = known(OPTIONS)[number].person_queries[index]
        rng.shuffle(options)
        rows.append({"id": number, "input": query.question, "answer": [query.answer], "options": options})

    def asked(n: int) -> dict:
        return rows[0] | {"context": _told(request, paragraphs, n)}

    return Draft(asked, lambda n: [row | {"context": "-"} for row in rows[1:]], smallest=0)


def _summary(known: list[facts.World]) -> str:
    return " ".join(f"{world.person} {world.town}" for world in known)


def book_summary(request: Request) -> Draft:
    """A book about some people, whose summary is what it tells of them."""
    known = worlds(request)(PEOPLE)
    paragraphs = [f"{world.person} {world.town}" for world in known]

    def asked(n: int) -> dict:
        text = _told(request, paragraphs, n)
        return {"id": 0, "context": text, "input": "", "answer": [_summary(known)]}

    others = [
        {"id": number, "context": "-", "input": "", "answer": [_summary([world])]}
        for number, world in enumerate(worlds(request, "demonstrations")(DEMOS), 1)
    ]
    return Draft(asked, lambda n: others, smallest=0)


def case(request: Request) -> Draft:
    """Documents of one case, each about one person, whose summary is what they tell of them."""
    known = worlds(request)(PEOPLE)

    def asked(n: int) -> dict:
        share, more = divmod(n, PEOPLE)
        texts = [
            _told(request, [world.person, world.town], share + (number < more), f"document {number}")
            for number, world in enumerate(known)
        ]
        return {"id": 0, "sources": texts, "summary/short": _summary(known)}

    others = [
        {"id": number, "sources": ["-"], "summary/short": _summary([world])}
        for number, world in enumerate(worlds(request, "demonstrations")(DEMOS), 1)
    ]
    return Draft(asked, lambda n: others, smallest=0)
