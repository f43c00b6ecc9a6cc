"""Labelled corpora made of random numbers, for tests that need no model."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from kvrepro.labels.corpus import LabelledCorpus, Labels, LabelSettings, save
from kvrepro.models.geometry import Geometry
from kvrepro.models.loading import LoadedModel
from kvrepro.training.estimators import Recipe

BASE = yaml.safe_load((Path(__file__).parent.parent / "config/tiers/base.yaml").read_text())
RECIPE = Recipe(**BASE["estimators"])

#: Attention at layers 1, 4, 9 and GDN elsewhere: windows of 1, 3 and 6 of 7 GDN layers.
GEOMETRY = Geometry(
    model_type="made-up",
    layers=10,
    attention_layers=(1, 4, 9),
    gdn_layers=(0, 2, 3, 5, 6, 7, 8),
    query_heads=4,
    kv_heads=2,
    head_dim=8,
    rotary_dim=8,
    gdn_heads=3,
    gdn_head_dim=4,
    hidden=16,
    vocab=50,
    output_gate=True,
    qk_norm=True,
    max_positions=4096,
)
LM = LoadedModel("made-up", None, None, GEOMETRY, torch.device("cpu"), torch.float32, "feedbeef")


def document(seed: int, n: int, geometry: Geometry = GEOMETRY) -> Labels:
    """Random signals; the utility of each layer and head follows one β‖v‖ of its window, plus noise."""
    g = torch.Generator().manual_seed(seed)
    shape = len(geometry.gdn_layers), n, geometry.gdn_heads
    signals = torch.stack(
        [
            torch.rand(shape, generator=g),
            -torch.rand(shape, generator=g) / (1 + 400 * torch.arange(3)),
            1 + torch.rand(shape, generator=g),
        ],
        -1,
    )
    write = signals[0, :, 1, 0] * signals[0, :, 1, 2]
    noise = torch.rand(len(geometry.attention_layers), geometry.kv_heads, n, generator=g)
    return Labels(
        signals=signals,
        utility=(write.expand_as(noise) ** 4 + 0.3 * noise).contiguous(),
        layer_gates=torch.rand(len(geometry.attention_layers), generator=g) if geometry.output_gate else None,
        seed=seed,
        token_sha256="",
        checks={"closed_form_error": 0.0},
    )


def corpus(folder, name: str, documents: list[Labels], lm=LM) -> LabelledCorpus:
    """The documents as a corpus in a file."""
    save(folder / f"{name}.safetensors", lm, name, documents, LabelSettings.from_config(BASE["labels"]))
    return LabelledCorpus(folder / f"{name}.safetensors")
