"""Stand-ins at any length in any tokenizer, deterministic from a seed: pages that list towns among paragraphs of prose.

A page lists as many towns as the answer has room for, and has the most paragraphs that fit.
"""

from __future__ import annotations

import html
from typing import Any

from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.fit import largest_fitting
from kvrepro.benchmarks.helmet.stand_ins.draft import prose, worlds
from kvrepro.benchmarks.longproc.definitions import Task
from kvrepro.benchmarks.longproc.definitions import task as definition
from kvrepro.benchmarks.longproc.pages import STAND_IN, example, parse
from kvrepro.benchmarks.ruler import facts
from kvrepro.benchmarks.ruler.problem import Request, scatter
from kvrepro.benchmarks.ruler.sources import Sources, check_sentences
from kvrepro.benchmarks.stand_ins import capped, check_size, fullest
from kvrepro.errors import InputError

HEADER = ("town", "county", "known for", "founded")
MOST_TOWNS = 200


def generate(
    task: str,
    n_items: int,
    tokens: int,
    tokenizer: Any,
    seed: int,
    sources: Sources,
    chat: bool = False,
    most_new_tokens: int | None = None,
) -> list[Example]:
    """``n_items`` stand-ins of a task whose prompt and answer have at most ``tokens`` tokens; ``most_new_tokens`` caps
    the published generation lengths.

    ``info`` holds "length", "size" (sentences of prose), "rows", "split" and "stand_in". Raises InputError for an
    unknown task, a missing haystack, and a length or an answer too short.
    """
    chosen = capped(definition(task), most_new_tokens)
    check_size("LongProc", n_items, tokens)
    check_sentences(sources, "LongProc")
    return [_fill(chosen, item, tokens, tokenizer, seed, sources, chat) for item in range(n_items)]


def _fill(task: Task, item: int, tokens: int, tokenizer: Any, seed: int, sources: Sources, chat: bool) -> Example:
    """One item with the largest page that fits."""

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    request = Request(f"{seed}/{task.name}/{item}", item, tokens, count, sources)
    known = worlds(request)

    def answered(rows: int) -> int:
        return count(f"```tsv\n{_table(known(rows))}```")

    fitted = largest_fitting(answered, task.max_new_tokens, 1, MOST_TOWNS)
    if fitted is None:
        raise InputError(f"{task.name}: an answer of {task.max_new_tokens} tokens holds no row; let it be longer.")
    towns = known(fitted[0])
    page = parse(_published(towns), f"generated {task.name}, item {item}")

    def made(size: int) -> Example:
        info = {"source": "generated", "stand_in": True, "split": sources.split, "size": size, "rows": len(towns)}
        return example(task, page, _html(request, towns, size), item, seed, info, STAND_IN)

    return fullest(made, 0, tokens, tokenizer, chat, "raise the length or lower most_new_tokens")


def _cells(world: facts.World) -> list[str]:
    """Town, county, good and year of a world."""
    return [world.person_queries[0].answer, *(query.answer for query in world.town_queries)]


def _table(towns: list[facts.World]) -> str:
    return "".join("\t".join(row) + "\n" for row in (HEADER, *map(_cells, towns)))


def _published(towns: list[facts.World]) -> dict:
    """What the published files say of a page."""
    asked = "; ".join(f"({number}) {name}" for number, name in enumerate(HEADER, 1))
    return {
        "task_topic": "towns",
        "task_description": asked,
        "tsv_header": "\t".join(HEADER),
        "gt": _table(towns),
        "filtering_instruction": "",
        "html_path": "generated",
    }


def _html(request: Request, towns: list[facts.World], size: int) -> str:
    """The page: one block a town, in the table's order, among ``size`` sentences of prose."""
    blocks = []
    for world in towns:
        town, *values = _cells(world)
        entries = "".join(f"<li>{name}: {value}</li>" for name, value in zip(HEADER[1:], values, strict=True))
        blocks.append(f'<div class="town"><h2>{town}</h2><ul>{entries}</ul></div>')
    text = [f"<p>{html.escape(sentence)}</p>" for sentence in prose(request, size)]
    body = "\n".join(scatter(text, blocks, request.rng("places")))
    return f"<html>\n<head><title>Towns</title></head>\n<body>\n{body}\n</body>\n</html>"
