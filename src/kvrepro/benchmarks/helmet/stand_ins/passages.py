"""Lists of passages: questions that one or two of them answer, and queries that rank them."""

from __future__ import annotations

import random

from kvrepro.benchmarks.helmet.stand_ins.draft import DEPTHS, Draft, at_depth, worlds
from kvrepro.benchmarks.ruler import facts
from kvrepro.benchmarks.ruler.problem import Request, growing

DEMOS = 2
OF_DEMO = 3  # passages of a demonstration, as published
RANKED_OF_DEMO = 10
IDENTIFIERS = 10_000_000


def one_hop(request: Request) -> Draft:
    """A question that one passage answers."""
    return _questions(request, hops=1)


def two_hops(request: Request) -> Draft:
    """A question about a person's town, of which two passages tell."""
    return _questions(request, hops=2)


def _questions(request: Request, hops: int) -> Draft:
    known, rng = worlds(request), request.rng("queries")
    drawn = [_drawn(world, hops, rng) for world in known(DEMOS + 1)]

    def row(number: int, passages: int, depth: int) -> dict:
        query, golden = drawn[number]
        others = [
            text for i, world in enumerate(known(passages + DEMOS + 1)) if i != number for text in _passages(world)
        ]
        shown = at_depth(others[: passages - hops], golden, depth, request.rng(f"places {number}"))
        return {
            "id": f"{request.key}/{number}",
            "question": query.question,
            "answers": [query.answer],
            "ctxs": shown,
            "s_pop": 100,
        }

    def demos(n: int) -> list[dict]:
        return [row(number, OF_DEMO, number) for number in range(1, DEMOS + 1)]

    return Draft(lambda n: row(0, n, request.item % DEPTHS), demos, smallest=DEPTHS)


def _drawn(world: facts.World, hops: int, rng: random.Random) -> tuple[facts.Query, list[dict]]:
    """A question about a world, and the passages that answer it."""
    person, town = _passages(world)
    if hops == 2:
        return rng.choice(world.two_hop), [person, town]
    queries, golden = rng.choice([(world.person_queries, person), (world.town_queries, town)])
    return rng.choice(queries), [golden]


def _passages(world: facts.World) -> list[dict]:
    """A titled passage of the person and one of the town."""
    town = world.person_queries[0].answer
    person = world.person_queries[0].question.removeprefix("Where was ").removesuffix(" born?")
    return [{"title": person, "text": world.person}, {"title": town, "text": world.town}]


def ranked(request: Request) -> Draft:
    """Passages about towns; a query names a county and a good. A passage about both is labelled 3, about the county 2,
    about the good 1, and any other 0."""
    made = [_Query(request, number) for number in range(DEMOS + 1)]

    def demos(n: int) -> list[dict]:
        return [query.row(RANKED_OF_DEMO) for query in made[1:]]

    return Draft(made[0].row, demos, smallest=DEPTHS)


class _Query:
    """A county, a good, and passages about towns that fit both, one or none of them."""

    def __init__(self, request: Request, number: int):
        self.request, self.number, self.split = request, number, request.sources.split
        rng, self.taken, self.named = request.rng(f"query {number}"), set(), set()
        self.county, self.good = facts.county_name(rng, self.split), rng.choice(facts.GOODS)
        fitting = [(self.county, self.good, 3), (self.county, None, 2), (None, self.good, 1)]
        self.fitting = [self.passage(rng, *each) for each in fitting]
        self.others = growing(lambda: self.passage(rng, None, None, 0))

    def passage(self, rng: random.Random, county: str | None, good: str | None, label: int) -> dict:
        """A passage about a new town; what is not given is drawn, and other than what the query names."""
        while county is None or (label < 2 and county == self.county):
            county = facts.county_name(rng, self.split)
        while good is None or (label in (0, 2) and good == self.good):
            good = rng.choice(facts.GOODS)
        town = facts.town_name(rng, self.split, self.taken)
        text = f"{town} is a town in the county of {county}. {town} is known for its {good}."
        return {"id": self.identifier(rng), "text": text, "label": label}

    def identifier(self, rng: random.Random) -> str:
        """A number that no other passage of the list has."""
        while (number := str(rng.randrange(1, IDENTIFIERS))) in self.named:
            pass
        self.named.add(number)
        return number

    def row(self, n: int) -> dict:
        others = self.others(n - len(self.fitting))
        places = self.request.rng(f"places {self.number}")
        return {
            "qid": f"{self.request.key}/{self.number}",
            "query": f"{self.good} from the county of {self.county}",
            "ctxs": at_depth(others, list(self.fitting), self.request.item % DEPTHS, places),
        }
