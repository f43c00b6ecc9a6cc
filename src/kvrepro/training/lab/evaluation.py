"""Quick evaluation of a lab model: items of RULER, and of register programs where it was trained on them, decoded
greedily in batches, and held-out perplexity.

It serves to watch a run and to choose between seeds; the accuracies that are reported come from the workflow's
evaluation rule. ``python -m kvrepro.training.lab.evaluation items --data DATA`` makes the items once;
``... run --config CONFIG --data DATA --run RUN`` evaluates the checkpoint of a run, rounded to bf16 as it is exported,
and writes ``RUN/evaluation.json``.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from tokenizers import Tokenizer

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.reasoning import registers
from kvrepro.benchmarks.reasoning import score as reasoning_score
from kvrepro.benchmarks.ruler.draws import EVAL
from kvrepro.errors import InputError, command_line
from kvrepro.models.loading import usable
from kvrepro.training.lab import checkpoint
from kvrepro.training.lab.config import load_config
from kvrepro.training.lab.fast import FastForward
from kvrepro.training.lab.graphs import GraphPool
from kvrepro.training.lab.model import build_model
from kvrepro.training.lab.rows import EOS
from kvrepro.training.lab.texts import heldout_documents

SOURCES = {"prose": "kjv", "word_count": 50, "list_word_tokens": 2}  # as ruler.sources of the tiers
SEED = 7_000_000  # of the items; the workflow's evaluation uses other seeds
REGISTERS, REGISTERS_LENGTH = 6, 1536  # of the items of this task, as the tier lab asks it, in rows of any length
ROW = 1024  # tokens a row when perplexity is measured

Predict = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Item:
    """One item in tokens. ``draft`` is a guess of the answer in the model's form, where decoding starts."""

    task: str
    prompt: list[int]
    draft: list[int]
    references: list[str]
    max_new_tokens: int


def draft(task: str, references: tuple[str, ...]) -> str:
    """The references in the form that a lab model writes (the order, or the town of qa_2, may differ)."""
    if task == registers.TASK:
        return references[1]
    if task == "cwe":
        return "".join(f" {i}. {word}" for i, word in enumerate(references, 1))
    if task == "fwe":
        return " " + " ".join(references)
    if task == "vt":
        return " ".join(references)
    if len(references) > 1 and task.startswith("niah"):
        return f" {', '.join(references[:-1])}, and {references[-1]}"
    return " " + references[0]


def make_items(tokenizer, length: int, count: int, sources: ruler.Sources) -> list[Item]:
    """``count`` items a task of at most ``length`` tokens; a task that does not fit is left out, and said so."""
    items = []
    for task in (*ruler.TASKS, registers.TASK):
        try:
            if task == registers.TASK:
                room = min(length, REGISTERS_LENGTH)
                examples = registers.generate(count, room, REGISTERS, tokenizer, SEED + length, EVAL)
            else:
                examples = ruler.generate(task, count, length, tokenizer, SEED + length, sources)
        except InputError as error:
            print(f"left out: {error}")
            continue
        for example in examples:
            prompt, question = render(example, tokenizer), example.questions[0]
            guess = tokenizer.encode(draft(task, question.references), add_special_tokens=False)
            ids = prompt.prefix + prompt.questions[0]
            items.append(Item(task, ids, guess, list(question.references), question.max_new_tokens))
    return items


def write_items(data: Path, length: int, items: list[Item]) -> None:
    """Stores items for ``read_items``."""
    (data / f"items-{length}.json.xz").write_bytes(lzma.compress(json.dumps([asdict(i) for i in items]).encode()))


def read_items(data: Path, length: int, count: int, tasks: Collection[str] = ruler.TASKS) -> list[Item]:
    """The first ``count`` prepared items of each of some tasks."""
    path = data / f"items-{length}.json.xz"
    try:
        stored = json.loads(lzma.decompress(path.read_bytes()))
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise InputError(
            f"{path}: no evaluation items ({error}); run kvrepro.training.lab.evaluation items."
        ) from error
    seen: dict[str, int] = {}
    items = []
    for values in stored:
        task = values["task"]
        seen[task] = seen.get(task, 0) + 1
        if seen[task] <= count and task in tasks:
            items.append(Item(**values))
    return items


def decode(
    predict: Predict, items: list[Item], length: int, batch_tokens: int, device, most: int | None = None
) -> list[list[int]]:
    """Greedy continuations of the items, ``<|endoftext|>`` excluded, by fixed-point iteration.

    All answer positions are predicted at once from the present guess and become the next guess. A guess that repeats
    itself is exactly what token-by-token greedy decoding gives; every round settles at least one more token, and most
    rounds many. ``most`` bounds the rounds (then the answer may be unfinished).
    """
    rows = batch_tokens // length
    answers: list[list[int]] = []
    for begin in range(0, len(items), rows):
        part = items[begin : begin + rows]
        width = max(item.max_new_tokens for item in part)
        ids = torch.zeros(rows, length, dtype=torch.long)
        places = torch.zeros(rows, width, dtype=torch.long)
        for i, item in enumerate(part):
            guess = (item.draft + [EOS] * width)[:width]
            row = (item.prompt + guess)[:length]
            ids[i, : len(row)] = torch.tensor(row)
            places[i] = (len(item.prompt) + torch.arange(width)).clamp(max=length - 1)
        places[len(part) :] = 1
        ids, places = ids.to(device), places.to(device)
        guess = ids.gather(1, places)
        for _ in range(most or width + 1):
            fresh = predict(ids).gather(1, places - 1)
            before_end = ((fresh == EOS).cumsum(1) - (fresh == EOS).long()) == 0  # up to and including the first end
            settled = bool(((fresh == guess) | ~before_end).all())
            guess = fresh
            ids.scatter_(1, places, guess)
            if settled:
                break
        for item, row in zip(part, guess.tolist(), strict=False):
            row = row[: item.max_new_tokens]
            answers.append(row[: row.index(EOS)] if EOS in row else row)
    return answers


def accuracy(
    predict: Predict,
    items: list[Item],
    length: int,
    batch_tokens: int,
    device,
    tokenizer: Tokenizer,
    most: int | None = None,
) -> tuple[dict[str, float], dict[str, list]]:
    """Mean score a task, times 100, and up to three wrong answers a task with their references."""
    scores: dict[str, list[float]] = {}
    wrong: dict[str, list] = {}
    for item, ids in zip(items, decode(predict, items, length, batch_tokens, device, most), strict=True):
        text = tokenizer.decode(ids)
        score = _score(item.task, text, item.references)
        scores.setdefault(item.task, []).append(score)
        if score < 1 and len(wrong.setdefault(item.task, [])) < 3:
            wrong[item.task].append([text, item.references])
    return {task: round(100 * float(np.mean(values)), 2) for task, values in scores.items()}, wrong


def _score(task: str, text: str, references: list[str]) -> float:
    if task == registers.TASK:
        return reasoning_score.registers(text, *references)["score"]
    return ruler.score(task, text, references)


def perplexities(nll: Callable, documents: dict[str, list[np.ndarray]], batch_tokens: int, device) -> dict[str, float]:
    """Perplexity per token of each corpus' documents, each begun after ``<|endoftext|>`` and cut into rows."""
    rows = batch_tokens // ROW
    out = {}
    for name, texts in documents.items():
        pieces = []
        for document in texts:
            stream = np.concatenate([[EOS], document]).astype(np.int64)
            pieces += [stream[i : i + ROW + 1] for i in range(0, len(stream) - 1, ROW)]
        total = count = 0.0
        for begin in range(0, len(pieces), rows):
            x, y = np.zeros((2, rows, ROW), np.int64)
            mask = np.zeros((rows, ROW), bool)
            for i, piece in enumerate(pieces[begin : begin + rows]):
                n = len(piece) - 1
                x[i, :n], y[i, :n], mask[i, :n] = piece[:-1], piece[1:], True
            each = nll(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)).detach().float().cpu().numpy()
            total += float(each[mask].sum(dtype=np.float64))
            count += int(mask.sum())
        out[name] = round(math.exp(total / count), 3)
    return out


def evaluate(args: argparse.Namespace) -> dict:
    """Accuracy at each length and perplexity of the checkpoint in ``args.run``."""
    config = load_config(args.config)
    state = checkpoint.load(args.run, config)
    if state is None:
        raise InputError(f"{args.run}: there is no checkpoint to evaluate; train first.")
    device = usable(args.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = build_model(config.model, EOS, 0)
    model.load_state_dict(state["model"])
    model.to(torch.bfloat16).float().to(device)
    cuda = device.type == "cuda"
    forward = FastForward(model, torch.bfloat16 if cuda else torch.float32, compiled=cuda)
    graphs = GraphPool(enabled=cuda, eager_calls=2)

    def predict(ids):
        return graphs("predict", lambda x: (forward.predict(x),), ids)[0]

    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    part = state["part"] + 1
    result = {"name": config.name, "seed": state["seed"], "part": part, "step": state["step"]}
    result |= {"accuracy": {}, "wrong": {}}
    ngram = json.loads((args.data / "ngram.json").read_text()) if (args.data / "ngram.json").exists() else {}
    result["perplexity"] = perplexities(forward.nll, heldout_documents(args.data), config.batch_tokens, device)
    result["perplexity_3gram"] = ngram
    for name, value in result["perplexity"].items():
        print(f"perplexity {name:10s} {value:8.2f}   3-gram {ngram.get(name, float('nan')):8.2f}", flush=True)
    for length in args.lengths:
        begin = time.monotonic()
        items = read_items(args.data, length, args.items, {*ruler.TASKS, *config.tasks})
        scores, wrong = accuracy(predict, items, length, config.batch_tokens, device, tokenizer)
        mean = round(float(np.mean(list(scores.values()))), 2)
        result["accuracy"][length] = {"part": part, "tasks": scores, "mean": mean, "items": len(items)}
        result["wrong"][length] = wrong
        seconds = time.monotonic() - begin
        print(f"accuracy at {length}: mean {mean} lowest {min(scores.values())} ({len(items)} items, {seconds:.0f} s)")
        for task, value in scores.items():
            print(f"  {task:18s} {value:6.2f}", *wrong.get(task, [])[:1], flush=True)
        (args.run / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("items")
    make.add_argument("--data", type=Path, required=True)
    make.add_argument("--counts", nargs="+", default=["1024:32", "4096:50", "8192:20"], help="length:items a task")
    make.set_defaults(command="items")
    run = commands.add_parser("run")
    run.add_argument("--config", type=Path, required=True)
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--run", type=Path, required=True)
    run.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192])
    run.add_argument("--items", type=int, default=1000, help="at most this many a task")
    run.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run.set_defaults(command="run")
    args = parser.parse_args(argv)
    if args.command == "run":
        evaluate(args)
        return
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.data)
    sources = ruler.from_settings(SOURCES, tokenizer)
    for entry in args.counts:
        length, count = map(int, entry.split(":"))
        write_items(args.data, length, make_items(tokenizer, length, count, sources))


if __name__ == "__main__":
    command_line(main)
