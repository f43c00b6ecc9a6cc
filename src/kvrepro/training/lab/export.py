"""Exports a finished run in transformers' format: ``python -m kvrepro.training.lab.export weights ...``.

``weights`` writes bf16 safetensors shards of at most 16 MB, configuration, generation configuration and tokenizer, and
checks that the folder loads with ``AutoModelForCausalLM.from_pretrained`` and gives the logits of the training forward.
``card`` writes the model card from the loss curves and evaluations of the runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import textwrap
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from kvrepro.benchmarks.reasoning import registers
from kvrepro.data.sources import manifest
from kvrepro.errors import InputError, command_line
from kvrepro.training.lab import checkpoint
from kvrepro.training.lab.config import LabConfig, load_config
from kvrepro.training.lab.evaluation import read_items
from kvrepro.training.lab.fast import FastForward
from kvrepro.training.lab.model import build_model
from kvrepro.training.lab.rows import EOS

SHARD = "13MB"  # repositories refuse large files; 16 MB is the most, index and header included
#: Largest difference of float32 logits between the loaded model and the training forward. Flash-linear-attention, which
#: Transformers takes wherever it is installed, runs on a GPU alone and multiplies in TF32.
TOLERANCE = {"cpu": 2e-3, "cuda": 2e-2}
CURVE_POINTS = 20


def export_weights(config: LabConfig, run: Path, data: Path, out: Path) -> float:
    """Writes the model folder of a run; returns the largest logit difference to the training forward."""
    state = checkpoint.load(run, config)
    if state is None:
        raise InputError(f"{run}: there is no checkpoint to export; train first.")
    model = build_model(config.model, EOS, 0)
    model.load_state_dict(state["model"])
    model.to(torch.bfloat16)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.safetensors*"):
        old.unlink()
    model.generation_config = GenerationConfig(eos_token_id=EOS, pad_token_id=EOS, do_sample=False)
    model.save_pretrained(out, max_shard_size=SHARD)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(data / name, out / name)
    for name in ("loss.csv", "evaluation.json"):
        if (run / name).exists():
            shutil.copy(run / name, out / name)
    difference = check_export(out, model, data)
    largest = max(path.stat().st_size for path in out.glob("*.safetensors"))
    if largest > 16e6:
        raise InputError(f"{out}: a weight file has {largest} bytes; lower SHARD in kvrepro.training.lab.export.")
    return difference


def check_export(folder: Path, model, data: Path) -> float:
    """Largest float32 logit difference between the loaded folder and the training forward, on one prompt."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    ids = torch.tensor([read_items(data, 1024, 1)[0].prompt[:512]], device=device)
    if tokenizer.encode(tokenizer.decode(ids[0]), add_special_tokens=False)[:64] != ids[0, :64].tolist():
        raise InputError(f"{folder}: the exported tokenizer does not give back its own ids; export again.")
    with torch.no_grad():
        trained = FastForward(model.float().to(device), torch.float32).logits(ids)
        difference = (loaded(input_ids=ids).logits - trained).abs().max()
    if not float(difference) < TOLERANCE[device]:
        raise InputError(f"{folder}: logits differ from the training forward by {float(difference):.1e}; export again.")
    return float(difference)


def _table(header: list[str], rows: list[list]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows] + [""]


def model_card(config: LabConfig, folders: list[Path], shipped: int, accuracy: dict | None = None) -> str:
    """Markdown card. ``folders`` are the exports of all seeds, with ``evaluation.json`` and ``loss.csv``; ``accuracy``
    is what the evaluation rule (``accuracy.json``) says of the shipped seed, None where it has not run."""
    runs = {}
    for folder in folders:
        evaluation = json.loads((folder / "evaluation.json").read_text())
        with (folder / "loss.csv").open() as f:
            runs[evaluation["seed"]] = (evaluation, list(csv.DictReader(f)))
    evaluations = {seed: runs[seed][0] for seed in sorted(runs)}
    if shipped not in runs:
        raise InputError(f"seed {shipped} is in none of the folders, which hold {sorted(runs)}; ship one of these.")
    curve = runs[shipped][1]
    lines = [
        *_about(config, sorted(runs), shipped),
        *_parts(config, curve),
        *_quick_accuracy(config, evaluations, shipped),
        *_official_accuracy(config, accuracy),
        *_perplexity(config, evaluations, shipped),
        *_curve(config, curve, shipped),
    ]
    return "\n".join(lines)


def _about(config: LabConfig, seeds: list[int], shipped: int) -> list[str]:
    hybrid = "linear_key_head_dim" in config.model
    kind = "Qwen3.5 class (Gated DeltaNet, every fourth layer attention)" if hybrid else "Qwen3 class"
    parameters = sum(p.numel() for p in build_model(config.model, EOS, 0).parameters())
    lines = [
        f"# {config.name}",
        "",
        textwrap.fill(
            f"A model of {parameters / 1e6:.1f}M parameters, {kind}, for experiments with KV caches, trained from "
            f"{config.start or 'scratch'} on free text and on the formats of the RULER benchmark"
            f"{', and on register programs' if registers.TASK in config.tasks else ''}, so that pruning its cache "
            "costs accuracy that can be measured without a GPU. It is of no use for anything else.",
            112,
            break_on_hyphens=False,
        ),
        "Licence: Apache-2.0.",
        "",
        f"* Trained on one NVIDIA H200; `config/lab/{config.name}.yaml` has every setting, and",
        f"  `snakemake --cores all -- build/lab/{config.name}-{shipped}/model/README.md` trains it again.",
        f"* Seeds {', '.join(map(str, seeds))} were trained; this is seed {shipped}.",
        "* Weights are bf16 safetensors; an answer ends with `<|endoftext|>`.",
        "* Keys, values, names and list words of the evaluation were never trained on (split by MD5), and haystacks of",
        "  the evaluation are held-out documents.",
        "",
        "## Data",
        "",
    ]
    rows = [[name, m["kind"], ", ".join(m["sources"]), m["licence"]] for name, m in manifest().items()]
    lines += _table(["corpus", "kind", "source", "licence"], rows)
    return [*lines, "RULER formats: templates of NVIDIA/RULER (Apache-2.0), contents generated.", ""]


def _parts(config: LabConfig, curve: list[dict]) -> list[str]:
    seconds = {int(p["part"]): float(p["seconds"]) for p in curve}  # of each part's last point
    rows = []
    for number, part in enumerate(config.parts, 1):
        tokens, final = part.total_steps * config.batch_tokens, part.stages[-1]
        lists = final.tasks.get("cwe", 0) / sum(final.tasks.values())
        longest = max(n for stage in part.stages for n in stage.lengths)
        rate = f"{part.learning_rate:g} to {part.final_learning_rate:g}"
        spent = f"{seconds[number]:.0f}" if number in seconds else "-"
        rows.append(
            [number, f"{part.total_steps:,}", f"{tokens / 1e6:.1f}M", rate, f"{longest:,}", f"{lists:.0%}", spent]
        )
    steps = sum(part.total_steps for part in config.parts)
    lines = ["## Training", ""]
    lines += [
        f"{steps:,} steps of {config.batch_tokens:,} tokens, {steps * config.batch_tokens / 1e6:.1f}M in all.",
        *([f"The first part begins with the weights of {config.start}."] if config.start else []),
        "Each part begins with the weights of the one before, rounded to bf16, and a fresh optimiser.",
        "",
    ]
    header = ["part", "steps", "tokens", "learning rate", "longest row", "cwe among tasks at its end", "seconds"]
    return lines + _table(header, rows)


def _after(config: LabConfig, part: int) -> str:
    return f"after part {part} of {len(config.parts)}"


def _seed(config: LabConfig, seed: int, evaluation: dict) -> str:
    """Heading of a seed's column; it tells of a run that has not had all parts or did not reach the end of one."""
    part = evaluation["part"]
    total = config.parts[part - 1].total_steps
    fewer = "" if part == len(config.parts) else f", after part {part}"
    stopped = "" if evaluation["step"] == total else f", stopped at step {evaluation['step']:,} of {total:,}"
    return f"seed {seed}{fewer}{stopped}"


def _quick_accuracy(config: LabConfig, evaluations: dict[int, dict], shipped: int) -> list[str]:
    main = evaluations[shipped]
    lines = ["## Accuracy", "", "Unpruned, greedy, RULER's official metric times 100.", ""]
    for length, found in main["accuracy"].items():
        seeds = [seed for seed, e in evaluations.items() if length in e["accuracy"]]
        scores = {seed: evaluations[seed]["accuracy"][length]["tasks"] for seed in seeds}
        tasks = list(scores[shipped])
        lines += [
            f"### {int(length):,} tokens, quick evaluation {_after(config, found['part'])}",
            "",
            f"{found['items'] // len(tasks)} items a task.",
            "",
        ]
        mean = {seed: sum(scores[seed].values()) / len(tasks) for seed in seeds}
        rows = [[task, *(f"{scores[seed][task]:.1f}" for seed in seeds)] for task in tasks]
        rows += [["**mean**", *(f"{mean[seed]:.1f}" for seed in seeds)]]
        lines += _table(["task", *(_seed(config, seed, evaluations[seed]) for seed in seeds)], rows)
        weakest = min(tasks, key=lambda task: sum(scores[seed][task] for seed in seeds))
        told = " and ".join(f"{scores[seed][weakest]:.1f} (seed {seed})" for seed in seeds)
        lines += [f"The weak task is {weakest}, with {told}.", ""]
    return lines


def _official_accuracy(config: LabConfig, accuracy: dict | None) -> list[str]:
    lines = [f"### Evaluation rule, {_after(config, len(config.parts))}", ""]
    if accuracy is None:
        target = f"results/lab/accuracy/{config.name}/accuracy.json"
        return [
            *lines,
            "Not run. The accuracy of the weights in this folder comes from the workflow's evaluation rule:",
            f"`snakemake --cores all --config tier=lab -- {target}`",
            "",
        ]
    for key, scores in accuracy.items():
        name, _, length = key.rpartition("_")
        if name in ("ruler", "reasoning"):
            rows = [[task, f"{score:.1f}"] for task, score in scores.items()]
            rows += [["**mean**", f"{sum(scores.values()) / len(scores):.1f}"]] if name == "ruler" else []
            lines += [f"{int(length):,} tokens, {accuracy['items_per_task']} items a task.", ""]
            lines += _table(["task", "accuracy"], rows)
    return lines


def _perplexity(config: LabConfig, evaluations: dict[int, dict], shipped: int) -> list[str]:
    main = evaluations[shipped]
    rows = [
        [name, *(f"{e['perplexity'][name]:.2f}" for e in evaluations.values()), f"{main['perplexity_3gram'][name]:.2f}"]
        for name in main["perplexity"]
    ]
    header = ["corpus", *(_seed(config, seed, e) for seed, e in evaluations.items()), "interpolated 3-gram"]
    return [f"## Held-out perplexity per token, {_after(config, main['part'])}", "", *_table(header, rows)]


def _curve(config: LabConfig, curve: list[dict], shipped: int) -> list[str]:
    lines = [
        f"## Loss curve of seed {shipped}",
        "",
        "Answer tokens and text tokens in nats; the full curves of all parts are in `loss.csv`.",
        "",
    ]
    step, rows = max(1, len(curve) // CURVE_POINTS), []
    for number in range(1, len(config.parts) + 1):
        points = [p for p in curve if int(p["part"]) == number]
        shown = points[::-1][::step][::-1]  # the last point of a part is always there
        rows += [
            [number, p["step"], p["length"], f"{float(p['answer_loss']):.3f}", f"{float(p['text_loss']):.3f}"]
            for p in shown
        ]
    return lines + _table(["part", "step", "row length", "answer loss", "text loss"], rows)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    weights = commands.add_parser("weights")
    weights.add_argument("--config", type=Path, required=True)
    weights.add_argument("--data", type=Path, required=True)
    weights.add_argument("--run", type=Path, required=True)
    weights.add_argument("--out", type=Path, required=True)
    card = commands.add_parser("card")
    card.add_argument("--config", type=Path, required=True)
    card.add_argument(
        "--folders", type=Path, nargs="+", required=True, help="exports of all seeds, with evaluation.json"
    )
    card.add_argument("--accuracy", type=Path, help="accuracy.json of the shipped seed, from the evaluation rule")
    card.add_argument("--shipped", type=int, required=True, help="seed that is shipped")
    card.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    config = load_config(args.config)
    if args.command == "weights":
        difference = export_weights(config, args.run, args.data, args.out)
        print(f"{args.out}: exported; largest logit difference to the training forward {difference:.1e}")
        return
    accuracy = json.loads(args.accuracy.read_text()) if args.accuracy else None
    args.out.write_text(model_card(config, args.folders, args.shipped, accuracy))


if __name__ == "__main__":
    command_line(main)
