"""Identifies retrieval heads by optimisation: ``python -m kvrepro.training.gates.heads --model NAME --out FILE``.

DuoAttention gives every KV head a number α and mixes two attentions, α · full + (1 - α) · streaming, where streaming
sees sinks and a window. α is trained to keep the final hidden states while it is pressed towards zero; heads that stay
high need the whole context. Two recipes: ``duo``, its authors' (α clamped to [0, 1], loss on the tokens of long
passkeys that the context hides and the end repeats), and ``wg_kv``, that of WG-KV's published code for models without
an official pattern (α a sigmoid, loss on all tokens of the rows that gates are trained on).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from kvrepro.data import corpora
from kvrepro.errors import InputError, command_line
from kvrepro.methods import head_profile
from kvrepro.methods.head_profile import HeadProfile
from kvrepro.models.gated_attention import gated, gated_attention
from kvrepro.models.loading import LoadedModel
from kvrepro.training.gates.loss import hidden_states
from kvrepro.training.gates.recipe import FORMS, GateRecipe, HeadRecipe
from kvrepro.training.gates.rows import Rows, Texts, texts
from kvrepro.training.gates.train import load_for_training

LOG = 50  #: steps between progress lines


class Mixing:
    """Attention of every head as a mixture of full and streaming; ``raw`` ``[attention_layers, kv_heads]``."""

    def __init__(self, lm: LoadedModel, recipe: HeadRecipe):
        self.lm, self.recipe = lm, recipe
        start = 1.0 if recipe.form == "duo" else 0.0
        size = len(lm.geometry.attention_layers), lm.geometry.kv_heads
        self.raw = torch.full(size, start, device=lm.device, requires_grad=True)

    def gates(self) -> torch.Tensor:
        """α of every head."""
        return self.raw if self.recipe.form == "duo" else self.raw.sigmoid()

    def attend(self, layer, keys_pre_rope, query, key, value, scale: float) -> torch.Tensor:
        """α · full + (1 - α) · streaming, ``[batch, query_heads, n, head_dim]``."""
        full = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        hidden = torch.full(key.shape[:3], float("-inf"), device=key.device)
        hidden[..., : self.recipe.sinks] = 0.0
        streaming = gated_attention(query, key, value, hidden, self.recipe.window, scale)
        alpha = self.gates()[self.lm.geometry.attention_layers.index(layer)]
        alpha = alpha.repeat_interleave(self.lm.geometry.group)[:, None, None].to(full.dtype)
        return alpha * full + (1 - alpha) * streaming


@dataclass
class Passkeys:
    """Rows of text that hide passkeys and repeat all of them at the end."""

    text: Texts
    words: list[str]
    recipe: HeadRecipe

    def row(self, step: int) -> tuple[list[int], list[bool]]:
        """Tokens of a step, and which of them are of an answer."""
        r, tokenizer = self.recipe, self.text.tokenizer
        rng = np.random.default_rng([r.seed, 3, step])

        def ids(string: str) -> list[int]:
            return tokenizer.encode(string, add_special_tokens=False)

        names = [f"Passkey {number}:" for number in range(1, r.passkeys + 1)]
        keys = [ids(" " + " ".join(rng.choice(self.words, r.words))) for _ in names]
        labels = [ids(f"\n{name}") for name in names]
        used = sum(map(len, keys)) + sum(map(len, labels))
        need = int(rng.integers(r.lengths[0], r.lengths[1] + 1)) - 2 * used
        if need < r.passkeys:
            raise InputError(
                f"head_profile.lengths: {r.passkeys} passkeys of {r.words} words take {2 * used} tokens of at least "
                f"{r.lengths[0]}; lengthen rows or take fewer words."
            )
        haystack = self.text.row(rng, need)
        cuts = np.sort(rng.integers(0, need + 1, r.passkeys))
        row: list[int] = []
        for begin, end, label, key in zip([0, *cuts], cuts, labels, keys, strict=False):
            row += [*haystack[begin:end], *label, *key, *ids("\n")]
        row += haystack[cuts[-1] :]
        answer = [False] * len(row)
        for label, key in zip(labels, keys, strict=True):
            row += [*label, *key]
            answer += [False] * len(label) + [True] * len(key)
        return row, answer


Source = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def passkey_source(lm: LoadedModel, recipe: HeadRecipe) -> Source:
    """Rows of ``duo``: ids ``[1, n]`` and the positions whose next token is of an answer, ``[1, n]`` bool."""
    text = texts(lm.tokenizer, False, "train", list(recipe.corpora), "", whole=False)
    rows = Passkeys(text, corpora.common_words(50), recipe)

    def source(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, answer = rows.row(step)
        return torch.tensor(ids)[None], torch.tensor([*answer[1:], False])[None]

    return source


def gate_source(lm: LoadedModel, gates: GateRecipe) -> Source:
    """Rows that gates are trained on, with a loss on every token."""
    rows = Rows(gates, lm.tokenizer, lm.chat)

    def source(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.from_numpy(rows[step % len(rows)]).long()
        return ids, torch.ones_like(ids, dtype=torch.bool)

    return source


def identify(lm: LoadedModel, recipe: HeadRecipe, source: Source, say: Callable[[str], None] = print) -> HeadProfile:
    """Train α of all heads; raises InputError when the loss is not finite."""
    mixing = Mixing(lm, recipe)
    optimizer = torch.optim.AdamW([mixing.raw], lr=recipe.learning_rate, weight_decay=0.0)
    for step in range(recipe.steps):
        ids, counted = (x.to(lm.device) for x in source(step))
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        with torch.no_grad():
            target = hidden_states(lm, ids)[counted].float()
        with gated(lm, mixing):
            distillation = F.mse_loss(hidden_states(lm, ids)[counted].float(), target)
        alpha = mixing.gates()
        pressure = alpha.abs().sum() if recipe.form == "duo" else alpha.mean()
        optimizer.zero_grad()
        (distillation + recipe.pull * pressure).backward()
        optimizer.step()
        if recipe.form == "duo":
            with torch.no_grad():
                mixing.raw.clamp_(0, 1)
        if (step + 1) % LOG == 0 or step + 1 == recipe.steps:
            if not torch.isfinite(distillation):
                raise InputError(f"step {step + 1}: the loss is not finite; lower head_profile.learning_rate.")
            say(f"step {step + 1}/{recipe.steps} distillation {distillation.item():.5f} mean gate {alpha.mean():.3f}")
    return HeadProfile(mixing.gates().detach().cpu(), {"recipe": asdict(recipe)})


def identify_from(
    lm: LoadedModel, recipe: HeadRecipe, gates: GateRecipe | None = None, say: Callable[[str], None] = print
) -> HeadProfile:
    """Identify heads as a recipe says, or read the published pattern that it names; ``wg_kv`` reads the rows that
    ``gates`` are trained on."""
    if recipe.pattern:
        return head_profile.load(recipe.pattern, lm)
    source = passkey_source(lm, recipe) if recipe.form == "duo" else gate_source(lm, gates)
    return identify(lm, recipe, source, say)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="name in config/models.yaml, or a directory")
    parser.add_argument("--recipe", type=Path, required=True, help="YAML with the keys of write_gates and head_profile")
    parser.add_argument("--form", choices=FORMS, help="in place of the recipe's")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    lm = load_for_training(args.model, args.device)
    recipe = HeadRecipe.read(args.recipe, {"form": args.form} if args.form else {})
    gates = None if recipe.form == "duo" else GateRecipe.read(args.recipe)[0]
    identify_from(lm, recipe, gates, say=lambda text: print(text, flush=True)).save(args.out, lm)


if __name__ == "__main__":
    command_line(main)
