"""Output gates of the attention layers over labelled corpora (GateSight §4.2)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kvrepro.labels.corpus import LabelledCorpus


def gate_rows(labelled: Sequence[LabelledCorpus], tier: str) -> list[dict]:
    """Tidy rows of the mean output gate of each attention layer in each document, experiment ``layer_gates`` (§4.2)."""
    return [
        {
            "paper": "gatesight",
            "experiment": "layer_gates",
            "tier": tier,
            "model": corpus.meta["model"],
            "method": "output_gate",
            "options": json.dumps({"layer": layer}),
            "budget": None,
            "task": corpus.name,
            "item": i,
            "metric": "gate",
            "value": value,
            "seed": corpus.meta["settings"]["seed"],
        }
        for corpus in labelled
        for i, doc in enumerate(corpus)
        if doc.layer_gates is not None
        for layer, value in zip(corpus.meta["geometry"]["attention_layers"], doc.layer_gates.tolist(), strict=True)
    ]
