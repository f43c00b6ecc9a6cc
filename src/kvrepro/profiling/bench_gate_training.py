"""What gates cost in training: a step of gate training against the same forward and backward without gates.

``python -m kvrepro.profiling.bench_gate_training --out FILE.csv``. All steps run the frozen model once without
gradients and once with them, and take the distillation loss back through all layers. Without gates the second forward
is the model's own, with its fastest causal attention, or that of FlexAttention, in which Write-Gated Attention is
written, and gradients go to the embeddings. With gates it is Write-Gated Attention, the loss on gates and the
optimiser's step are added, and gradients go to the gates: those of one λ, or those of seven that train together, on the
same rows and with one forward of the frozen model. ``overhead`` and ``peak_ratio`` are against the fastest attention,
``overhead_flex`` against FlexAttention; seconds and tokens a second are those of each λ. Weights are random: time and
memory do not depend on them. Before anything is timed, Write-Gated Attention and its gradients are compared with
float64.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from kvrepro.errors import InputError, command_line
from kvrepro.models.attention import NAME
from kvrepro.models.capture import decoder
from kvrepro.models.gate import WriteGates, initial
from kvrepro.models.gated_attention import (
    causal_blocks,
    compiled,
    distant_bias,
    gated,
    gated_attention,
    gated_attention_exact,
)
from kvrepro.models.geometry import geometry
from kvrepro.models.loading import LoadedModel
from kvrepro.profiling.clock import median_seconds
from kvrepro.training.gates.loss import hidden_states, step
from kvrepro.training.gates.recipe import GateRecipe

#: SmolLM2-135M-Instruct, as its file of weights says.
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
}
MEASURED = ("length", "rows", "what", "lambdas", "seconds", "tokens_per_second", "peak_gib")
COLUMNS = (*MEASURED, "overhead", "overhead_flex", "peak_ratio")
LAMBDAS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
LIMIT = 0.02  #: relative error of bf16 above which Write-Gated Attention counts as wrong


def model(config: dict, device: str, dtype: torch.dtype) -> LoadedModel:
    """A Llama-class model with random frozen weights."""
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**config, attn_implementation=NAME)).to(device, dtype).eval()
    made.requires_grad_(False)
    return LoadedModel("bench", made, None, geometry(made.config), torch.device(device), dtype, "0" * 16)


def errors(device: str, dtype: torch.dtype, n: int, heads: tuple[int, int], d: int, window: int) -> dict[str, float]:
    """Relative errors of output and gradients against float64, largest difference over largest value."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = {"query": (2, heads[0], n, d), "key": (2, heads[1], n, d), "value": (2, heads[1], n, d)}
    given = {k: torch.randn(s, generator=generator, device=device, dtype=dtype) for k, s in shapes.items()}
    given["gate"] = torch.rand(2, heads[1], n, generator=generator, device=device)
    target = torch.randn(shapes["query"], generator=generator, device=device, dtype=dtype)

    def run(attention: Callable, wide: Callable) -> list[torch.Tensor]:
        q, k, v, g = (wide(x).requires_grad_() for x in given.values())
        out = attention(q, k, v, distant_bias(g), window, d**-0.5)
        return [out.detach(), *torch.autograd.grad(out, (q, k, v, g), wide(target))]

    found = run(gated_attention, lambda x: x.clone())
    exact = run(gated_attention_exact, lambda x: x.double())
    names = ("output", *given)
    return {
        name: ((a.double() - b).abs().max() / b.abs().max()).item()
        for name, a, b in zip(names, found, exact, strict=True)
    }


@cache
def _flex():
    from torch.nn.attention.flex_attention import flex_attention

    def run(query, key, value, mask, scale: float, gqa: bool):
        return flex_attention(query, key, value, None, mask, scale=scale, enable_gqa=gqa)

    return compiled(run)


class Causal:
    """Causal attention of :func:`kvrepro.models.gated_attention.gated` without gates."""

    def attend(self, layer: int, keys_pre_rope, query, key, value, scale: float) -> torch.Tensor:
        """FlexAttention on a GPU, and the exact blocks of rows elsewhere."""
        n = query.shape[2]
        if query.is_cuda:
            return _flex()(query, key, value, causal_blocks(n, query.device), scale, query.shape[1] != key.shape[1])
        return gated_attention_exact(query, key, value, key.new_zeros(key.shape[:3]), n, scale)


def without_gates(lm: LoadedModel, ids: torch.Tensor, flex: bool = False) -> None:
    """The same forwards and backward without gates."""
    with torch.no_grad():
        target = hidden_states(lm, ids)
    embedded = lm.model.get_input_embeddings()(ids).requires_grad_()
    with gated(lm, Causal()) if flex else nullcontext():
        found = decoder(lm.model)(inputs_embeds=embedded, use_cache=False).last_hidden_state
        F.mse_loss(found.float(), target.float()).backward()


def with_gates(lm: LoadedModel, recipe: GateRecipe, lambdas: Sequence[float], ids: torch.Tensor) -> Callable[[], None]:
    """A step of training the gates of some λ."""
    hidden = recipe.hidden(lm.geometry.head_dim)
    sweep = [
        WriteGates(
            initial(lm.geometry, hidden).to(lm.device), lm.geometry, lm.fingerprint, lm.name, recipe.window, trade_off
        )
        for trade_off in lambdas
    ]
    parameters = [p for gates in sweep for p in gates.layers.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=lm.device.type == "cuda")

    def train_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        step(lm, sweep, recipe, ids)
        optimizer.step()

    return train_step


def measure(call: Callable[[], None], device: str, repeats: int) -> tuple[float, float]:
    """Median seconds and peak GiB of a call (zero on a CPU)."""
    call()  # compiles, and makes the optimiser's state
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(call, device, repeats)
    return seconds, torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0


def bench(lm: LoadedModel, sizes: list[tuple[int, int]], window: int, repeats: int) -> list[dict]:
    """Rows of the four arms at every (length, rows)."""
    device, found = str(lm.device), []
    for length, rows in sizes:
        recipe = GateRecipe(
            window=window, expansion=1.5, steps=1, lengths={length: 1}, batch_tokens=length * rows, sources=[]
        )
        ids = torch.randint(lm.geometry.vocab, (rows, length), generator=torch.Generator().manual_seed(0)).to(device)

        arms = {
            "without_gates": (1, partial(without_gates, lm, ids)),
            "without_gates_flex": (1, partial(without_gates, lm, ids, flex=True)),
            "with_gates": (1, with_gates(lm, recipe, LAMBDAS[:1], ids)),
            "with_gates_together": (len(LAMBDAS), with_gates(lm, recipe, LAMBDAS, ids)),
        }
        measured = {}
        for what, (lambdas, call) in arms.items():
            seconds, peak = measure(call, device, repeats)
            measured[what] = lambdas, seconds / lambdas, peak
        (_, base, base_peak), (_, flex, _) = measured["without_gates"], measured["without_gates_flex"]
        for what, (lambdas, seconds, peak) in measured.items():
            speed = length * rows / seconds
            values = length, rows, what, lambdas, seconds, speed, peak, seconds / base - 1, seconds / flex - 1
            row = dict(zip(COLUMNS, (*values, peak / base_peak if base_peak else 1.0), strict=True))
            print(*(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
            found.append(row)
    return found


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=["4096x4", "4096x8", "8192x4", "1024x8"], help="length x rows")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=SMOLLM2["num_hidden_layers"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    dtype = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    for heads, d, n in (((9, 3), 64, 1000), ((8, 4), 64, 2048)):
        relative = errors(args.device, dtype, n, heads, d, min(args.window, n // 4))
        print(f"check heads {heads} of {d}, {n} tokens:", {k: f"{v:.1e}" for k, v in relative.items()}, flush=True)
        if max(relative.values()) > LIMIT:
            raise InputError(
                f"Write-Gated Attention differs from float64 by {max(relative.values()):.1e}; do not train."
            )
    sizes = [tuple(int(x) for x in size.split("x")) for size in args.sizes]
    lm = model(SMOLLM2 | {"num_hidden_layers": args.layers}, args.device, dtype)
    rows = bench(lm, sizes, args.window, args.repeats)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    command_line(main)
