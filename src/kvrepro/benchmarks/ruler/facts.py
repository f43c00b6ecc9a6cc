"""Generated facts about a person and the town they were born in: documents and questions for qa_1 and qa_2 offline.

People, towns and counties have a split (see ``draws``); trades, goods, animals and years are small closed sets and
have none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvrepro.benchmarks.ruler.draws import draw


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SYLLABLES = _words(
    "bar den mor lin hel tas wick ford ren vel dor mar kin sol tam ber gal nor fen hol rim "
    "pel cas tor wen bri dal ker lo ma ni ra sa ti vo ya ze an el ol ur"
)
_TOWN_ENDINGS = ("ton", "ville", "burg", "stead", "mouth", "field")
TRADES = _words(
    "carpenter painter teacher farmer doctor lawyer sailor printer baker weaver miner singer writer potter brewer "
    "tailor surgeon chemist engineer librarian"
)
GOODS = _words(
    "silver honey wool glass paper salt wine cheese timber iron pottery silk barley amber copper linen soap leather "
    "marble tea"
)
ANIMALS = _words("horse falcon turtle fox raven rabbit goat otter badger lizard parrot hound")


@dataclass(frozen=True)
class Query:
    """A question, its answer, and for two hops the town that links its two documents."""

    question: str
    answer: str
    bridge: str | None = None


@dataclass(frozen=True)
class World:
    """Two documents of one person and one town, with every question they answer."""

    person: str
    town: str
    person_queries: tuple[Query, ...]  # answered by the document `person`
    town_queries: tuple[Query, ...]  # answered by the document `town`
    two_hop: tuple[Query, ...]  # need both


def name(rng: random.Random, syllables: int) -> str:
    """A made-up name of some syllables, capitalised."""
    return "".join(rng.choices(_SYLLABLES, k=syllables)).capitalize()


def person_name(rng: random.Random, split: str | None, taken: set[str] | None = None) -> str:
    """First and second name."""
    return draw(lambda: f"{name(rng, 2)} {name(rng, 2)}", split, taken, "person")


def town_name(rng: random.Random, split: str | None, taken: set[str] | None = None) -> str:
    """A town; every third has one syllable more, so that a long context does not run out of towns."""
    return draw(lambda: name(rng, rng.choice((2, 2, 3))) + rng.choice(_TOWN_ENDINGS), split, taken, "town")


def county_name(rng: random.Random, split: str | None) -> str:
    """A county; several towns may lie in one."""
    return draw(lambda: name(rng, 2) + "shire", split, None, "county")


def world(rng: random.Random, split: str | None, taken: set[str] | None = None) -> World:
    """A person and a town not in ``taken``, with the facts about both in random order."""
    person, town = person_name(rng, split, taken), town_name(rng, split, taken)
    spouse, county = person_name(rng, split, taken), county_name(rng, split)
    trade, good, animal = rng.choice(TRADES), rng.choice(GOODS), rng.choice(ANIMALS)
    married, founded = rng.randint(1700, 1950), rng.randint(1100, 1690)
    about_person = [
        f"{person} was born in the town of {town}.",
        f"{person} worked as a {trade}.",
        f"{person} married {spouse} in {married}.",
        f"{person} kept a {animal}.",
    ]
    about_town = [
        f"{town} is a town in the county of {county}.",
        f"{town} is known for its {good}.",
        f"{town} was founded in {founded}.",
    ]
    rng.shuffle(about_person)
    rng.shuffle(about_town)
    return World(
        person=" ".join(about_person),
        town=" ".join(about_town),
        person_queries=(
            Query(f"Where was {person} born?", town),
            Query(f"What was the profession of {person}?", trade),
            Query(f"Whom did {person} marry?", spouse),
            Query(f"Which animal did {person} keep?", animal),
        ),
        town_queries=(
            Query(f"In which county is {town}?", county),
            Query(f"What is {town} known for?", good),
            Query(f"In which year was {town} founded?", str(founded)),
        ),
        two_hop=(
            Query(f"In which county is the town where {person} was born?", county, town),
            Query(f"What is the town where {person} was born known for?", good, town),
            Query(f"In which year was the town where {person} was born founded?", str(founded), town),
        ),
    )
