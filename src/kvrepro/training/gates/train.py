"""Trains write gates: ``python -m kvrepro.training.gates.train --model NAME --recipe FILE --lambdas 0.08 --out RUN``.

FILE is a recipe as in ``config/write_gates``. For each λ, or each few of them that the recipe trains ``together``, a
folder of ``RUN`` gets ``gates.safetensors`` with a card ``README.md``, the loss curve ``loss.csv`` and held-out losses
``validation.parquet``. A run continues from its checkpoint by itself, and what is complete is left alone. With
``--max-seconds`` it stops in time with code 0. When all are complete, ``RUN/gates.safetensors`` holds the whole sweep
and ``RUN/validation.parquet`` all its rows.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvrepro import results
from kvrepro.errors import InputError, command_line
from kvrepro.models.gate import KIND, REMEDY, WriteGates, initial, join_gates, save_gates
from kvrepro.models.loading import LoadedModel, load
from kvrepro.tensorfile import TensorFile
from kvrepro.training.cost import cost_rows
from kvrepro.training.gates import validation
from kvrepro.training.gates.card import card
from kvrepro.training.gates.loss import step
from kvrepro.training.gates.recipe import GateRecipe
from kvrepro.training.gates.recipe_file import trained_together
from kvrepro.training.gates.rows import Rows

GATES, ROWS, CARD = "gates.safetensors", "validation.parquet", "README.md"  #: files of a folder
CURVE = ("lambda", "step", "length", "distillation", "sparsity", "gate", "tokens", "seconds")
Say = Callable[[str], None]


def load_for_training(name: str, device: str) -> LoadedModel:
    """A model in the type its gates are trained in: bfloat16 on a GPU, float32 elsewhere."""
    return load(name, device, torch.bfloat16 if device.startswith("cuda") else torch.float32)


class Run:
    """Gates of some λ that train together, their optimiser, step and loss curves, kept in a folder."""

    def __init__(self, lm: LoadedModel, recipe: GateRecipe, lambdas: Sequence[float], folder: Path):
        if min(lambdas) < 0:
            raise InputError(f"write_gates.lambdas: {min(lambdas)} would reward a full cache; give at least 0.")
        self.lm, self.recipe, self.folder = lm, recipe, folder
        self.identity = recipe.identity(lm.fingerprint, *lambdas)
        self.sweep = []
        for trade_off in lambdas:
            layers = initial(lm.geometry, recipe.hidden(lm.geometry.head_dim), recipe.seed).to(lm.device)
            gates = WriteGates(layers, lm.geometry, lm.fingerprint, lm.name, recipe.window, trade_off)
            self.sweep.append(gates)
        self.optimizer = torch.optim.AdamW(
            [p for gates in self.sweep for p in gates.layers.parameters()],
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=lm.device.type == "cuda",
        )
        self.step, self.curve = 0, []
        self._resume()

    @property
    def checkpoint(self) -> Path:
        """File of the state of the run."""
        return self.folder / "checkpoint.pt"

    def _resume(self) -> None:
        if not self.checkpoint.exists():
            return
        try:
            state = torch.load(self.checkpoint, map_location=self.lm.device, weights_only=True)
        except Exception as error:  # torch.load raises many kinds
            raise InputError(f"{self.checkpoint} cannot be read ({error}); delete it to train anew.") from error
        if state["identity"] != self.identity or not isinstance(state["gates"], list):
            raise InputError(
                f"{self.checkpoint} is of another model, recipe or lambda; delete it or choose another folder."
            )
        for gates, found in zip(self.sweep, state["gates"], strict=True):
            gates.layers.load_state_dict(found)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.curve = state["step"], state["curve"]

    def save(self) -> None:
        """Checkpoint and loss curve; a kill at any moment leaves the old files or the new ones."""
        state = {
            "identity": self.identity,
            "gates": [gates.layers.state_dict() for gates in self.sweep],
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "curve": self.curve,
        }
        with results.atomic(self.checkpoint) as temporary:
            torch.save(state, temporary)
        with results.atomic(self.folder / "loss.csv") as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, CURVE, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.curve)

    def train_step(self, batch: np.ndarray) -> torch.Tensor:
        """One optimiser step on int32 ``[rows, n]``; returns distillation, sparsity and mean gate of every λ, ``[3,
        lambdas]`` on the device."""
        ids = torch.from_numpy(batch).to(self.lm.device, non_blocking=True).long()
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        losses = step(self.lm, self.sweep, self.recipe, ids)
        self.optimizer.step()
        self.step += 1
        return torch.stack([losses.distillation, losses.sparsity, losses.gate])


def train(run: Run, batches: Iterator[np.ndarray], max_seconds: float = math.inf, say: Say = print) -> bool:
    """Runs to the last step or for ``max_seconds``; True when it is complete. ``batches`` begin at ``run.step``.

    Raises InputError when the loss is not finite; the checkpoint stays as it was.
    """
    recipe, begin = run.recipe, time.monotonic()
    before = run.curve[-1]["seconds"] if run.curve else 0.0
    tokens = run.curve[-1]["tokens"] if run.curve else 0
    window: list[torch.Tensor] = []
    saved, mark, since = begin, begin, tokens
    while run.step < recipe.steps:
        batch = next(batches)
        window.append(run.train_step(batch))
        tokens += batch.size
        now = time.monotonic()
        late = now - begin > max_seconds
        due = late or now - saved > recipe.checkpoint_seconds
        if due or run.step % recipe.log_every == 0 or run.step == recipe.steps:
            values = torch.stack(window).mean(0)
            now = time.monotonic()
            if not (fine := values.isfinite().all(0)).all():
                of = zip(run.sweep, fine.tolist(), strict=True)
                bad = ", ".join(f"{gates.trade_off:g}" for gates, good in of if not good)
                raise InputError(
                    f"step {run.step}, lambda {bad}: the loss is not finite; {run.checkpoint} is from before; lower "
                    "learning_rate."
                )
            spent = round(before + now - begin, 1)
            for gates, own in zip(run.sweep, values.T.tolist(), strict=True):
                point = gates.trade_off, run.step, batch.shape[1], *(round(v, 6) for v in own), tokens, spent
                run.curve.append(dict(zip(CURVE, point, strict=True)))
            losses, gate = (" ".join(f"{v:.4f}" for v in values[i].tolist()) for i in (0, 2))
            say(
                f"step {run.step}/{recipe.steps} L{batch.shape[1]} distillation {losses} gate {gate} "
                f"{(tokens - since) / (now - mark):.0f} tokens/s {spent:.0f}s"
            )
            window, mark, since = [], now, tokens
        if due:
            run.save()
            saved = time.monotonic()
        if late and run.step < recipe.steps:
            say(f"out of time at step {run.step} of {recipe.steps}; run again to continue")
            return False
    run.save()
    return True


def finish(run: Run, held_out: dict[int, np.ndarray], tier: str, provenance: dict[str, Any], say: Say = print) -> None:
    """Measure the trained gates on held-out rows and write gates, card and rows."""
    rows, cards = [], []
    numbers = {key: run.curve[-1][key] for key in ("seconds", "tokens")}
    for gates in run.sweep:
        measured = list(validation.measure(run.lm, gates, run.recipe, held_out))
        rows += validation.tidy(measured, tier, run.lm.name, run.recipe, gates.trade_off)
        about = {"lambda": gates.trade_off, "window": run.recipe.window, "steps": run.step, "seed": run.recipe.seed}
        about["together"] = len(run.sweep)  # the seconds are of all of them
        where = {"paper": "wg_kv", "tier": tier, "model": run.lm.name}
        rows += cost_rows("write_gates", numbers, about, provenance["hardware"], **where)
        found = {}
        for threshold in run.recipe.thresholds:
            of = [m for m in measured if m["threshold"] == threshold]
            loss, cache = (sum(m[key] for m in of) / len(of) for key in ("loss", "cache"))
            found[str(threshold)] = {"loss": loss, "cache": cache}
            say(
                f"lambda {gates.trade_off:g} held out, threshold {threshold}: distillation loss {loss:.5f}, "
                f"normalised cache size {cache:.3f}"
            )
        gates.training = {
            "identity": run.recipe.identity(run.lm.fingerprint, gates.trade_off),
            "recipe": run.recipe.as_dict(),
            "steps": run.step,
            "held_out": found,
        }
        cards.append(card(gates, run.curve, provenance))
    results.write_rows(rows, run.folder / ROWS, provenance)
    (run.folder / CARD).write_text("\n".join(cards))
    save_gates(run.sweep, run.folder / GATES)  # last: it says that the run is complete


def complete(folder: Path, lm: LoadedModel, recipe: GateRecipe, lambdas: Sequence[float]) -> bool:
    """Whether a folder holds these gates; InputError when it holds others."""
    if not (folder / GATES).exists():
        return False
    file = TensorFile(folder / GATES, KIND, REMEDY)
    file.belongs_to(lm.fingerprint, lm.geometry.as_dict())
    found = {name: about["training"]["identity"] for name, about in file.meta["sweep"].items()}
    if found != {f"{trade_off:g}": recipe.identity(lm.fingerprint, trade_off) for trade_off in lambdas}:
        raise InputError(f"{folder} holds gates of another recipe; delete it or choose another folder.")
    return True


def train_each(
    lm: LoadedModel,
    recipe: GateRecipe,
    lambdas: list[float],
    out: Path,
    tier: str,
    provenance: dict[str, Any],
    workers: int = 0,
    max_seconds: float = math.inf,
    say: Say = print,
) -> list[Path]:
    """Train the gates of all λ, as many at once as the recipe says; the folders, or none when time ran out. Other
    processes may train other λ in the same ``out``."""
    begin = time.monotonic()
    rows = held_out = None
    groups = {out / name: group for name, group in trained_together(lambdas, recipe.together).items()}
    for number, (folder, group) in enumerate(groups.items(), 1):
        if complete(folder, lm, recipe, group):
            continue
        run = Run(lm, recipe, group, folder)
        if rows is None:
            rows = Rows(recipe, lm.tokenizer, lm.chat)
            held_out = validation.held_out(recipe, lm.tokenizer, lm.chat)

        def tell(text: str, name: str = f"[{lm.name} lambda {folder.name}, {number} of {len(groups)}] ") -> None:
            say(name + text)

        left = max_seconds - (time.monotonic() - begin)
        if left <= 0 or not train(run, rows.batches(run.step, workers), left, tell):
            return []
        finish(run, held_out, tier, provenance, tell)
    return list(groups)


def sweep(
    lm: LoadedModel,
    recipe: GateRecipe,
    lambdas: list[float],
    out: Path,
    tier: str,
    provenance: dict[str, Any],
    **more: Any,
) -> bool:
    """:func:`train_each`, and all gates and rows in one file each; True when all are complete."""
    folders = train_each(lm, recipe, lambdas, out, tier, provenance, **more)
    if folders:
        join_gates([folder / GATES for folder in folders], out / GATES)
        results.write_rows(results.read_rows(folder / ROWS for folder in folders), out / ROWS, provenance)
    return bool(folders)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="name in config/models.yaml, or a directory")
    parser.add_argument("--recipe", type=Path, required=True, help="a file as in config/write_gates")
    parser.add_argument("--lambdas", type=float, nargs="+", help="in place of the recipe's")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tier", default="none", help="what the rows name as their tier")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--max-seconds", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, default=0, help="processes that make rows")
    args = parser.parse_args(argv)
    recipe, lambdas = GateRecipe.read(args.recipe, {"lambdas": args.lambdas} if args.lambdas else {})
    lm = load_for_training(args.model, args.device)
    provenance = results.provenance(recipe.as_dict(), args.device, weights=lm.fingerprint)

    def say(text: str) -> None:
        print(text, flush=True)

    more = {"workers": args.workers, "max_seconds": args.max_seconds, "say": say}
    done = sweep(lm, recipe, lambdas, args.out, args.tier, provenance, **more)
    say("complete" if done else "incomplete: run again to continue")


if __name__ == "__main__":
    command_line(main)
