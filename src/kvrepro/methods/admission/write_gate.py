"""WG-KV: a trained gate per KV head decides from a key whether its entry is written beyond the window (§3.2, §4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.cache.admitted import Policy
from kvrepro.errors import InputError, unknown
from kvrepro.methods.admission.base import Admission
from kvrepro.models.gate import LayerGate, WriteGates, load_gates
from kvrepro.models.loading import LoadedModel

COMPARISONS = ("at_least", "above")
BLOCK = 64  #: rows that share the reach of a window in the published code


@dataclass
class WriteGate(Admission):
    """Admits entries whose gate is at least ``threshold`` (τ); how much is held is the gates' decision.

    ``trade_off`` is the λ the gates were trained with, None where their file holds one only; ``window`` None is the
    window they were trained with. Two variants of the published code: ``comparison`` ``above`` admits g > τ, and
    ``block_window`` lets all rows of a block of 64 of a prefill see as far back as its first row does. Neither has
    sinks. On a GPU the gate is one kernel (:mod:`kvrepro.kernels.write_gate`) where heads have a width it takes.
    """

    name = "write_gate"
    artifacts = ("write_gates",)
    trade_off: float | None = None
    threshold: float = 0.1
    window: int | None = None
    comparison: str = "at_least"
    block_window: bool = False
    write_gates: str = ""

    def __post_init__(self):
        self._gates: WriteGates | None = None
        self._kernel_weights: dict = {}
        if not 0 <= self.threshold <= 1:
            raise InputError(f"write_gate: threshold is {self.threshold}; gates lie in [0, 1], so give one in it.")
        if self.window is not None and self.window < 1:
            raise InputError(f"write_gate: window is {self.window} tokens; give at least 1.")
        if self.comparison not in COMPARISONS:
            raise unknown("comparison", self.comparison, COMPARISONS, "write_gate.comparison")

    def prepare(self, lm: LoadedModel) -> None:
        """Read the gates of the model."""
        self._gates, self._kernel_weights = load_gates(self.write_gates, lm, self.trade_off), {}

    def admit(
        self, layer: int, keys_pre_rope: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """The gates of §3.2."""
        d = keys.shape[-1]
        if keys.is_cuda and d >= 16 and d & (d - 1) == 0:
            return self._on_gpu(layer, keys_pre_rope, keys)
        return self._gates.of_layer(layer)(keys_pre_rope, keys)

    def _on_gpu(self, layer: int, keys_pre_rope: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        from kvrepro.kernels.write_gate import GateWeights, write_gate

        if layer not in self._kernel_weights:
            of_layer: LayerGate = self._gates.of_layer(layer)
            self._kernel_weights[layer] = GateWeights(*(w.to(keys.dtype) for w in of_layer.weights()))
        return write_gate(keys_pre_rope, keys, self._kernel_weights[layer])

    def policy(self, kept: float | None, n: int) -> Policy:
        """The gates' window and threshold; ``kept`` plays no part. InputError when the window exceeds the context."""
        window = self.window or (self._gates.window if self._gates else 1)  # without gates a config is being checked
        if window > n:
            raise InputError(
                f"write_gate: a window of {window} tokens never ends in a context of {n}; lower write_gate.window or "
                "take a longer context."
            )
        threshold = torch.tensor(self.threshold)
        if self.comparison == "above":
            threshold = torch.nextafter(threshold, torch.tensor(2.0))
        return Policy(window, self.admit, threshold.item(), block=BLOCK if self.block_window else 1)
