"""Trains one lab model: ``python -m kvrepro.training.lab.train --config CONFIG --data DATA --seed 0 --out RUN``.

The run continues from ``RUN/checkpoint.pt`` by itself. With ``--max-seconds`` it stops in time, saves and exits with
code 0; ``RUN/done`` exists when all parts are complete. On a GPU every part of the forward is compiled once and
forward and backward are replayed as one CUDA graph a row length.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from kvrepro.benchmarks.ruler import TASKS
from kvrepro.errors import InputError, command_line
from kvrepro.models import weights
from kvrepro.models.loading import usable
from kvrepro.training.lab import checkpoint, evaluation
from kvrepro.training.lab.batches import batches
from kvrepro.training.lab.config import LabConfig, Part, load_config
from kvrepro.training.lab.fast import FastForward
from kvrepro.training.lab.graphs import GraphPool
from kvrepro.training.lab.model import build_model
from kvrepro.training.lab.rows import ANSWER, EOS, TEXT

FINITE_EVERY = 20  # steps between looks at the loss, each of which waits for the GPU
CHECK_ROUNDS = 6  # decoding rounds of a check: a settled answer needs two or three
EAGER_STEPS = 3  # steps before a graph is captured: compilation and the allocator must have settled
CURVE = ("part", "step", "fraction", "length", "answer_loss", "text_loss", "answer_accuracy", "tokens", "seconds")


def make_optimizer(config: LabConfig, part: Part, model, fused: bool) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices except the embedding."""
    decayed, rest = [], []
    for name, p in model.named_parameters():
        (decayed if p.dim() == 2 and "embed" not in name else rest).append(p)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=part.learning_rate, betas=config.betas, fused=fused)


def begin_with(model, start: Path, data: Path) -> None:
    """Give a model the weights of a directory; InputError unless they fit and its tokenizer is that of ``data``."""
    if fault := weights.fault(start):
        raise InputError(f"start: {start} {fault}; restore it (git checkout {start}).")
    if (start / "tokenizer.json").read_bytes() != (data / "tokenizer.json").read_bytes():
        raise InputError(
            f"start: {start} has another tokenizer than {data}; make the data anew, or train from the start."
        )
    found = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict()
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        raise InputError(f"start: {start} is of another shape ({str(error).splitlines()[-1].strip()}).") from error


class Trainer:
    """Model, optimiser, part and step of one run."""

    def __init__(self, config: LabConfig, seed: int, run: Path, data: Path, device: torch.device, dtype: torch.dtype):
        self.config, self.seed, self.run, self.data, self.device = config, seed, run, data, device
        self.number, self.step, self.curve = 0, 0, []
        state = checkpoint.load(run, config, seed)
        self.model = build_model(config.model, EOS, seed)
        if config.start and not state:
            begin_with(self.model, Path(config.start), data)
        if state:
            self.model.load_state_dict(state["model"])
            self.number, self.step, self.curve = state["part"], state["step"], state["curve"]
        self.model.to(device)
        cuda = device.type == "cuda"
        self.optimizer = make_optimizer(config, self.part, self.model, fused=cuda)
        if state:
            self.optimizer.load_state_dict(state["optimizer"])
        self.parameters = list(self.model.parameters())
        for p in self.parameters:  # preallocated, so that a captured graph writes to the same places for ever
            p.grad = torch.zeros_like(p)
        self.forward = FastForward(self.model, dtype, compiled=cuda)
        self.graphs = GraphPool(enabled=cuda, eager_calls=EAGER_STEPS)
        self.items = {
            length: evaluation.read_items(data, length, config.check_items, {*TASKS, *config.tasks})
            for length in config.check_lengths
        }

    @property
    def part(self) -> Part:
        """The part that is being trained."""
        return self.config.parts[self.number]

    @torch.no_grad()
    def next_part(self) -> None:
        """Begin the next part: weights as an export has them, in bf16, and a fresh optimiser. They are rounded in
        place, since captured graphs read them where they are."""
        for p in self.parameters:
            p.copy_(p.to(torch.bfloat16))
        self.number, self.step = self.number + 1, 0
        self.optimizer = make_optimizer(self.config, self.part, self.model, fused=self.device.type == "cuda")

    def _forward_backward(self, ids: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._foreach_zero_([p.grad for p in self.parameters])
        targets, weights = ids[:, 1:].contiguous(), codes[:, 1:]
        answer_loss, text_loss, accuracy = self.forward.loss(
            ids[:, :-1].contiguous(), targets, (weights == ANSWER).float(), (weights >= TEXT).float()
        )
        (answer_loss + self.config.text_weight * text_loss).backward()
        return answer_loss.detach(), text_loss.detach(), accuracy.detach()

    def train_step(self, ids, codes) -> torch.Tensor:
        """One optimiser step on a batch of arrays; returns [answer loss, text loss, accuracy] on the device."""
        ids = torch.from_numpy(ids).to(self.device, non_blocking=True).long()
        codes = torch.from_numpy(codes).to(self.device, non_blocking=True)
        metrics = torch.stack(self.graphs("train", self._forward_backward, ids, codes))
        for group in self.optimizer.param_groups:
            group["lr"] = self.part.rate(self.step)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        self.step += 1
        return metrics

    def predict(self, ids: torch.Tensor) -> torch.Tensor:
        """Greedy next tokens; with gradients enabled, because compiled parts would be compiled anew without."""
        return self.graphs("predict", lambda x: (self.forward.predict(x),), ids)[0]

    def save(self) -> None:
        """Checkpoint and loss curve."""
        state = (self.number, self.step, self.model, self.optimizer, self.curve)
        checkpoint.save(self.run, self.config, self.seed, *state)
        with (self.run / "loss.csv.tmp").open("w", newline="") as f:
            writer = csv.DictWriter(f, CURVE, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.curve)
        os.replace(self.run / "loss.csv.tmp", self.run / "loss.csv")


def check_lines(trainer: Trainer, tokenizer: Tokenizer) -> list[str]:
    """Scores on a few items a task at each check length that the present rows come near to."""
    config, lines = trainer.config, []
    for length, items in trainer.items.items():
        if length <= 2 * max(trainer.part.stage(trainer.step).lengths):
            scores, _ = evaluation.accuracy(
                trainer.predict, items, length, config.batch_tokens, trainer.device, tokenizer, CHECK_ROUNDS
            )
            shown = " ".join(f"{task.removeprefix('niah_')} {score:.0f}" for task, score in scores.items())
            lines.append(f"check {length}: mean {sum(scores.values()) / len(scores):.1f} | {shown}")
    return lines


def train(
    trainer: Trainer,
    source: Callable[[Part, int], Iterator],
    tokenizer: Tokenizer,
    max_seconds: float = math.inf,
    say: Callable[[str], None] = print,
) -> bool:
    """Runs all parts to their end or for ``max_seconds``; True when they are complete. ``source`` gives the batches of
    a part from a step on. A loss that is not finite is an InputError, and the last checkpoint stays as it was."""
    begin = time.monotonic()
    while train_part(
        trainer, source(trainer.part, trainer.step), tokenizer, max_seconds - (time.monotonic() - begin), say
    ):
        if trainer.number + 1 == len(trainer.config.parts):
            (trainer.run / "done").touch()
            return True
        trainer.next_part()
        trainer.save()
        say(f"part {trainer.number} is complete; part {trainer.number + 1} begins")
    return False


def train_part(
    trainer: Trainer, source: Iterator, tokenizer: Tokenizer, max_seconds: float, say: Callable[[str], None]
) -> bool:
    """Runs the present part; see :func:`train`."""
    config, part, begin = trainer.config, trainer.part, time.monotonic()
    resumed = trainer.curve and trainer.curve[-1]["part"] == trainer.number + 1
    before = trainer.curve[-1]["seconds"] if resumed else 0.0
    saved, mark, since = begin, begin, trainer.step
    window: list[torch.Tensor] = []
    while trainer.step < part.total_steps:
        ids, codes = next(source)
        window.append(trainer.train_step(ids, codes))
        step, now = trainer.step, time.monotonic()
        if step % FINITE_EVERY == 0 and not bool(torch.isfinite(window[-1]).all()):
            raise InputError(
                f"step {step}: the loss is not finite (row length {ids.shape[1] - 1}); the checkpoint in "
                f"{trainer.run} is from before; lower learning_rate or look at the rows of this step."
            )
        if step % config.log_every == 0 or step == part.total_steps:
            answer, text, accuracy = torch.stack(window).mean(0).tolist()
            now = time.monotonic()
            speed = (step - since) * config.batch_tokens / (now - mark)
            tokens = step * config.batch_tokens
            seconds = before + now - begin
            fraction, length = step / part.total_steps, ids.shape[1] - 1
            values = (trainer.number + 1, step, fraction, length, answer, text, accuracy, tokens, seconds)
            trainer.curve.append(
                dict(zip(CURVE, (round(v, 4) if isinstance(v, float) else v for v in values), strict=True))
            )
            say(
                f"part {trainer.number + 1} step {step} f {fraction:.3f} L{length} answer {answer:.4f} "
                f"text {text:.3f} accuracy {accuracy:.4f} {speed / 1e3:.0f}K tokens/s {seconds:.0f}s"
            )
            window, mark, since = [], now, step
        if step % config.check_every == 0 and step < part.total_steps:
            for line in check_lines(trainer, tokenizer):
                say(line)
            mark, since = time.monotonic(), step
        late = now - begin > max_seconds
        if late or now - saved > config.checkpoint_seconds:
            if not bool(torch.isfinite(torch.stack(window).sum() if window else torch.zeros(()))):
                continue  # the next look at the loss reports it; a checkpoint with NaN is never written
            trainer.save()
            saved = time.monotonic()
            if late:
                say(f"out of time at step {step} of {part.total_steps}; run again to continue")
                return False
    trainer.save()
    return True


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder made by kvrepro.training.lab.prepare")
    parser.add_argument("--out", type=Path, required=True, help="run folder; continued when it holds a checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="counted from the start of the program")
    parser.add_argument("--workers", type=int, default=2, help="processes that make batches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    begin = time.monotonic()
    config = load_config(args.config)

    def say(text: str) -> None:
        print(f"[{config.name} seed {args.seed}] {text}", flush=True)

    device = usable(args.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    trainer = Trainer(config, args.seed, args.out, args.data, device, dtype)
    count = sum(p.numel() for p in trainer.parameters)
    say(f"{count / 1e6:.2f}M parameters on {device}, part {trainer.number + 1} of {len(config.parts)}")
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    say(f"ready after {time.monotonic() - begin:.0f} s")

    def source(part: Part, start: int) -> Iterator:
        return batches(config, part, args.data, args.seed, start, args.workers)

    done = train(trainer, source, tokenizer, args.max_seconds - (time.monotonic() - begin), say)
    say(
        f"{'complete' if done else 'incomplete'}: part {trainer.number + 1}, step {trainer.step}, "
        f"{time.monotonic() - begin:.0f} s in this call"
    )


if __name__ == "__main__":
    command_line(main)
