"""The card of trained gates."""

from __future__ import annotations

from typing import Any

from kvrepro.models.gate import WriteGates


def card(gates: WriteGates, curve: list[dict], provenance: dict[str, Any]) -> str:
    """Markdown: for which model, on what, how, and what came out."""
    training, g = gates.training, gates.geometry
    together = len({point["lambda"] for point in curve})
    alone = "" if together == 1 else f", together with {together - 1} other λ"
    recipe = training["recipe"]
    lines = [
        f"# Write gates of {gates.model}, λ = {gates.trade_off:g}",
        "",
        "Gates of WG-KV §3.2: they decide from a key which entries are written beyond the local window. They are of no",
        "use for any other weights; loading checks that.",
        "",
        f"* Model: {gates.model}, weights {gates.fingerprint}, {len(g.attention_layers)} attention layers, "
        f"{g.kv_heads} KV heads of {g.head_dim}.",
        f"* Gate: {gates.hidden} hidden units a head, {gates.parameters():,} parameters.",
        f"* Local window: {gates.window} tokens.",
        f"* Trained {training['steps']:,} steps on {curve[-1]['tokens']:,} tokens in {curve[-1]['seconds']:,} s on "
        f"{provenance['hardware']}{alone}, code at {provenance['commit']}.",
        "",
        "## Held out",
        "",
        "L2 distillation loss of the final hidden states with binarised gates, and entries held over tokens.",
        "",
        "| threshold | distillation loss | normalised cache size |",
        "|---|---|---|",
        *(f"| {t} | {m['loss']:.6f} | {m['cache']:.4f} |" for t, m in training["held_out"].items()),
        "",
        "## Recipe",
        "",
        *(f"* {key}: {value}" for key, value in recipe.items()),
    ]
    return "\n".join(lines) + "\n"
