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
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from kvrepro.data.sources import manifest
from kvrepro.errors import InputError
from kvrepro.training.lab import checkpoint
from kvrepro.training.lab.config import LabConfig, load_config
from kvrepro.training.lab.evaluation import read_items
from kvrepro.training.lab.fast import FastForward
from kvrepro.training.lab.model import build_model
from kvrepro.training.lab.rows import EOS

SHARD = "13MB"  # repositories refuse large files; 16 MB is the most, index and header included
TOLERANCE = 2e-3  # largest difference of float32 logits between the loaded model and the training forward
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
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([read_items(data, 1024, 1)[0].prompt[:512]])
    if tokenizer.encode(tokenizer.decode(ids[0]), add_special_tokens=False)[:64] != ids[0, :64].tolist():
        raise InputError(f"{folder}: the exported tokenizer does not give back its own ids; export again.")
    with torch.no_grad():
        difference = (loaded(input_ids=ids).logits - FastForward(model.float(), torch.float32).logits(ids)).abs().max()
    if not float(difference) < TOLERANCE:
        raise InputError(f"{folder}: logits differ from the training forward by {float(difference):.1e}; export again.")
    return float(difference)


def _table(header: list[str], rows: list[list]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows] + [""]


def model_card(config: LabConfig, folders: list[Path], shipped: int, accuracy: dict[int, dict] | None = None) -> str:
    """Markdown card. ``folders`` are the exports of all seeds; ``accuracy`` the evaluation rule's results by seed
    (``accuracy.json`` each), whose place the quick evaluation takes where they are missing."""
    runs = {}
    for folder in folders:
        evaluation = json.loads((folder / "evaluation.json").read_text())
        with (folder / "loss.csv").open() as f:
            runs[evaluation["seed"]] = (evaluation, list(csv.DictReader(f)))
    seeds = sorted(runs)
    main, curve = runs[shipped]
    kind = (
        "Qwen3.5 (Gated DeltaNet, every fourth layer attention)" if "linear_key_head_dim" in config.model else "Qwen3"
    )
    parameters = sum(p.numel() for p in build_model(config.model, EOS, 0).parameters())
    lines = [f"# {config.name}", ""]
    lines += [
        f"A {parameters / 1e6:.1f}M-parameter model of the {kind} class for experiments with KV caches, trained from",
        "scratch on free text and on the formats of the RULER benchmark, so that pruning its cache costs accuracy that",
        "can be measured without a GPU. It is of no use for anything else. Licence: Apache-2.0.",
        "",
        f"* {main['step']:,} steps of {config.batch_tokens:,} tokens ({main['step'] * config.batch_tokens / 1e6:.0f}M),"
        f" rows of up to {max(n for s in config.stages for n in s.lengths):,} tokens, one NVIDIA H200;"
        f" `config/lab/{config.name}.yaml`.",
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
    lines += ["RULER formats: templates of NVIDIA/RULER (Apache-2.0), contents generated.", "", "## Accuracy", ""]
    lines += ["Unpruned, greedy, RULER's official metric times 100.", ""]
    for length in main["accuracy"]:
        official = accuracy and all(f"ruler_{length}" in accuracy.get(seed, {}) for seed in seeds)
        if official:
            scores = {seed: accuracy[seed][f"ruler_{length}"] for seed in seeds}
            source = f"evaluation rule, {accuracy[shipped]['items_per_task']} items a task"
        else:
            scores = {seed: runs[seed][0]["accuracy"][length]["tasks"] for seed in seeds}
            items = main["accuracy"][length]["items"] // len(scores[shipped])
            source = f"quick evaluation, {items} items a task"
        lines += [f"{length} tokens ({source}):", ""]
        rows = [[task, *(f"{scores[seed][task]:.1f}" for seed in seeds)] for task in scores[shipped]]
        rows += [["**mean**", *(f"{sum(scores[seed].values()) / len(scores[seed]):.1f}" for seed in seeds)]]
        lines += _table(["task", *(f"seed {seed}" for seed in seeds)], rows)
    lines += ["## Held-out perplexity per token", ""]
    rows = [
        [name, *(f"{runs[seed][0]['perplexity'][name]:.2f}" for seed in seeds), f"{main['perplexity_3gram'][name]:.2f}"]
        for name in main["perplexity"]
    ]
    lines += _table(["corpus", *(f"seed {seed}" for seed in seeds), "interpolated 3-gram"], rows)
    lines += [
        f"## Loss curve of seed {shipped}",
        "",
        "Answer tokens and text tokens in nats; the full curve is in `loss.csv`.",
        "",
    ]
    step = max(1, len(curve) // CURVE_POINTS)
    rows = [
        [p["step"], p["length"], f"{float(p['answer_loss']):.3f}", f"{float(p['text_loss']):.3f}"]
        for p in [*curve[step - 1 :: step]]
    ]
    lines += _table(["step", "row length", "answer loss", "text loss"], rows)
    return "\n".join(lines)


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
    card.add_argument("--accuracy", type=Path, nargs="*", default=[], help="accuracy.json of each folder, same order")
    card.add_argument("--shipped", type=int, required=True, help="seed that is shipped")
    card.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    config = load_config(args.config)
    if args.command == "weights":
        difference = export_weights(config, args.run, args.data, args.out)
        print(f"{args.out}: exported; largest logit difference to the training forward {difference:.1e}")
        return
    seeds = [json.loads((f / "evaluation.json").read_text())["seed"] for f in args.folders]
    accuracy = {seed: json.loads(path.read_text()) for seed, path in zip(seeds, args.accuracy, strict=False)}
    args.out.write_text(model_card(config, args.folders, args.shipped, accuracy))


if __name__ == "__main__":
    main()
