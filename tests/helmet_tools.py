"""What the HELMET tests share: stand-ins of a task, and rows of the published formats."""

from __future__ import annotations

import json
from pathlib import Path

from ruler_tools import offline, tokenizer

from kvrepro.benchmarks import helmet


def make(task: str, tokens: int = 2600, n: int = 2, seed: int = 42, split: str | None = "eval", **options):
    options = {"most_new_tokens": 60} | options
    return helmet.generate(task, n, tokens, tokenizer(), seed, offline(split), **options)


def passages(name: str, count: int = 6) -> list[dict]:
    return [{"title": f"{name} {i}", "text": f"{name} holds {i} things."} for i in range(count)]


def question(number: int, depth: int = 0, **more) -> dict:
    """A row of retrieval-augmented generation; PopQA's have an identity and how often their subject is looked up."""
    shown = passages(f"Thing{number}")
    return {
        "question": f"What is in {number}?",
        "answers": [f"A{number}"],
        "ctxs": shown[depth:] + shown[:depth],
    } | more


def ranked(number: int, count: int = 6) -> dict:
    ctxs = [{"id": str(10 * number + i), "text": f"Text {i} of {number}.", "label": i % 4} for i in range(count)]
    return {"qid": f"q{number}", "query": f"things of {number}", "ctxs": ctxs}


def story(number: int, words: int) -> dict:
    text = " ".join(f"story{number}" for _ in range(words))
    return {"document": {"text": text}, "question": {"text": f"Who {number}?"}, "answers": [{"text": f"Ann {number}"}]}


def book(number: int, words: int, **more) -> dict:
    text = " ".join(f"book{number}" for _ in range(words))
    return {"id": number, "context": text, "input": f"Who {number}?", "answer": [f"Ann {number}", "Anna"]} | more


def case(number: int, words: int) -> dict:
    half = " ".join(f"case{number}" for _ in range(words // 2))
    return {"id": f"c{number}", "sources": [half, half], "summary/short": f"Case {number} was settled."}


def write(folder: Path, name: str, rows: list) -> Path:
    path = folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
