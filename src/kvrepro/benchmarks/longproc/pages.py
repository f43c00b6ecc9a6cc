"""A page and what is to be taken from it, in the published form; files and stand-ins go through the same check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.longproc.definitions import PROMPT, Task
from kvrepro.benchmarks.longproc.score import table
from kvrepro.benchmarks.published import Fields
from kvrepro.errors import InputError
from kvrepro.models.chat import MARKER

BENCHMARK = "longproc"
STAND_IN = "longproc_stand_in"  # generated pages are never called by the benchmark's name


@dataclass(frozen=True)
class Page:
    """One page: what it is about, what is asked of it, and the table that is wanted, header included."""

    topic: str
    description: str
    header: str
    reference: str
    filtering: str
    path: str  # of its HTML, below the folder of the task


def parse(data: Any, where: str) -> Page:
    """A page from its JSON object. Raises InputError, one sentence, for a missing or mistyped field and for a reference
    that is no table."""
    fields = Fields(data, where)
    reference = fields.text("gt")
    if not table(reference):
        raise InputError(f"{where}: field 'gt' holds no table with a header and rows; take the published file.")
    filtering = fields.get("filtering_instruction", str, "a text, or an empty one")
    names = ("task_topic", "task_description", "tsv_header")
    topic, description, header = map(fields.text, names)
    return Page(topic, description, header, reference, filtering, fields.text("html_path"))


def example(task: Task, page: Page, html: str, item: int, seed: int, info: dict, benchmark: str) -> Example:
    """The example of a page, whose HTML is the context."""
    filled = PROMPT.format(
        html_str=MARKER,
        task_topic=page.topic,
        task_description=page.description,
        filtering_instruction=page.filtering,
        tsv_header=page.header,
    )
    instruction, question = filled.split(MARKER)
    asked = (Question(question, (page.reference,), task.max_new_tokens),)
    return Example(benchmark, task.name, item, seed, instruction, html, asked, info)
