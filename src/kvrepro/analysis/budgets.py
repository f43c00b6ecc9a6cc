"""Answers under other budgets than GateSight's own, and under closed layers (GateSight §5.6, Appendices D and F).

All arms of a context are forked from one prefill and, but for those of received attention, from the same scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kvrepro.analysis import gate_statistics
from kvrepro.analysis.closing import closed, whole
from kvrepro.analysis.gated_scores import ReceivedAttention
from kvrepro.benchmarks.example import Example
from kvrepro.benchmarks.registry import Scorer
from kvrepro.evaluate.arms import Arm
from kvrepro.evaluate.protocol import evaluate
from kvrepro.methods.composition import PER_HEAD
from kvrepro.methods.eviction.gatesight import GateSight
from kvrepro.models.capture import Prefill
from kvrepro.models.geometry import Geometry
from kvrepro.models.loading import LoadedModel
from kvrepro.results import DENSE

EXPONENTS = (0.5, 1.5)
CLOSED_ON = "ruler"  #: the benchmark on which Appendix D closes layers
#: Of 16 attention layers the paper closes the first three, then the sixth (layers 3, 7, 11, then 23 of 64).
SHALLOW, NEXT = 3 / 16, 5 / 15


@dataclass
class PowerBudget(GateSight):
    """GateSight with the gates of the layers raised to a power (Appendix D)."""

    exponent: float

    def layer_weights(self, prefill: Prefill) -> torch.Tensor | None:
        """The layers' mean gates to the power ``exponent``, ``[attention_layers]``."""
        gates = super().layer_weights(prefill)
        return None if gates is None else gates**self.exponent


@dataclass
class HeadBudget(GateSight):
    """GateSight with budgets for KV heads, from the file ``gate_statistics`` (Appendix D)."""

    artifacts = ("estimators", "gate_statistics")
    gate_statistics: str

    def prepare(self, lm: LoadedModel) -> None:
        """Load estimators and gates; InputError when a file is missing, corrupt or another model's."""
        super().prepare(lm)
        self._gates = gate_statistics.load(self.gate_statistics, lm).kv_heads

    def layer_weights(self, prefill: Prefill) -> torch.Tensor:
        """Mean gates of the KV heads, ``[attention_layers, kv_heads]``."""
        return self._gates


def budget_arms(lm: LoadedModel, estimators: str, gates: str, kept: Iterable[float], rows: int) -> list[Arm]:
    """All arms at every kept fraction, named as :data:`kvrepro.analysis.names.ALLOCATIONS` names them, and received
    attention of the last ``rows`` tokens without and with the gate (``attention``, ``attention_gated``), flat. A model
    whose heads keep the same entries has no budgets per head.

    ``estimators`` and ``gates`` are the files of the model's estimators and gate statistics.
    """
    plain = GateSight(estimators)
    made = {
        "gate_proportional": (plain, "gate_proportional"),
        "flat": (plain, "flat"),
        "pyramid": (plain, "pyramid"),
        "per_head": (HeadBudget(estimators, gates), "gate_proportional_per_head"),
        **{f"exponent_{x:g}": (PowerBudget(estimators, x), "gate_proportional") for x in EXPONENTS},
        "attention": (ReceivedAttention(rows, gated=False), "flat"),
        "attention_gated": (ReceivedAttention(rows, gated=True), "flat"),
    }
    kept = list(kept)
    arms = []
    for name, (method, rule) in made.items():
        if lm.geometry.index and rule in PER_HEAD:
            continue
        method.prepare(lm)
        arms += [Arm(name, eviction=method, kept=share, allocation=rule) for share in kept]
    return arms


def closed_layers(geometry: Geometry) -> list[tuple[int, ...]]:
    """The attention layers that are closed together, first fewer, then more, at this model's depth."""
    layers = geometry.attention_layers
    shallow = layers[: max(1, round(SHALLOW * len(layers)))]
    further = layers[len(shallow) :][: 1 + max(0, round(NEXT * (len(layers) - 1)) - len(shallow))]
    return [shallow, (*shallow, further[-1])] if further else [shallow]


def budget_rows(
    lm: LoadedModel,
    examples: Iterable[Example],
    arms: list[Arm],
    score: Scorer,
    base: dict[str, Any],
    experiment: str = "budgets",
    closing: bool = True,
) -> Iterator[dict[str, Any]]:
    """Accuracy rows of every arm, and with ``closing`` on RULER those of the unpruned model with :func:`closed_layers`,
    experiment ``closed_layers``, method ``without 3 7 11``. ``base`` gives the columns paper and tier."""
    examples = list(examples)
    yield from evaluate(lm, examples, arms, score, base | {"experiment": experiment})
    examples = [example for example in examples if closing and example.benchmark == CLOSED_ON]
    base = base | {"experiment": "closed_layers"}
    for layers in [(), *closed_layers(lm.geometry)]:
        name = f"without {' '.join(map(str, layers))}" if layers else DENSE
        with closed(lm, whole(lm, layers)):
            for row in evaluate(lm, examples, [], score, base):
                if row["method"] == DENSE:
                    yield row | {"method": name}
