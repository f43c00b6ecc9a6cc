"""GateSight: keep what small networks predict to be useful from the native GDN signals (GateSight §4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.errors import InputError
from kvrepro.estimators import mlp
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill
from kvrepro.models.loading import LoadedModel


@dataclass
class GateSight(Eviction):
    """Score = Û of Eq. 3's features, one MLP per attention layer and KV head; no attention score and no query is read.

    ``estimators`` is the file of the model's trained estimators. The budget of a layer is proportional to its mean
    output gate, measured on the label corpus and kept in the same file (§4.2). On a GPU all networks are one kernel
    (:mod:`kvrepro.kernels.gatesight_score`), which multiplies in TF32.
    """

    name = "gatesight"
    allocation = "gate_proportional"
    artifacts = ("estimators",)
    estimators: str

    def prepare(self, lm: LoadedModel) -> None:
        """Load the estimators; InputError when the file is missing, corrupt or another model's."""
        self.use(mlp.load(self.estimators, lm.geometry, lm.fingerprint))

    def use(self, estimators: mlp.Estimators) -> None:
        """Score with these estimators."""
        self._loaded, self._networks = estimators, None

    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Predicted utility, per attention layer ``[kv_heads, n]``."""
        if prefill.signals is None:
            raise InputError("gatesight reads Gated DeltaNet signals, which this model does not have; use a hybrid.")
        if prefill.signals.is_cuda and self._loaded.heads.fused:
            return self._on_gpu(prefill.signals)
        return self._loaded.score(prefill.signals)

    def _on_gpu(self, signals: torch.Tensor) -> list[torch.Tensor]:
        from kvrepro.estimators import fused
        from kvrepro.kernels.gatesight_score import gatesight_score

        if self._networks is None:
            self._networks = fused.networks(self._loaded.heads, self._loaded.geometry).to(signals.device)
        return list(gatesight_score(signals, self._networks))

    def layer_weights(self, prefill: Prefill) -> torch.Tensor | None:
        """Mean output gate of each attention layer over the label corpus."""
        return self._loaded.layer_gates
