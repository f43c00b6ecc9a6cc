"""The estimators of a model: one small network per attention layer and KV head, run as one batch (GateSight §4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvrepro import tensorfile
from kvrepro.errors import InputError
from kvrepro.estimators.features import flat
from kvrepro.models.capture import SIGNALS
from kvrepro.models.geometry import Geometry

KIND = "estimators"
REMEDY = "run the workflow to train the estimators"
CHUNK = 8192  #: entries scored at a time, which bounds the memory of long contexts
FUSED_HIDDEN = 256  #: most hidden units of a network that the fused kernel takes


@dataclass
class Heads:
    """Standardisation and weights. A layers, K KV heads, F features (the widest layer's), H hidden units.

    x -> sigmoid(w2 · relu(w1 x + b1) + b2), x standardised. Without hidden units (``w1`` None) the map is linear,
    x -> w2 · x + b2, which is what ridge regression fits. Padded features have weight zero.
    """

    columns: torch.Tensor  #: [A, F] int64, columns of the flat matrix
    mean: torch.Tensor  #: [A, F]
    std: torch.Tensor  #: [A, F]
    w1: torch.Tensor | None  #: [A, F, K, H]
    b1: torch.Tensor | None  #: [A, K, H]
    w2: torch.Tensor  #: [A, K, H], or [A, K, F] of a linear map
    b2: torch.Tensor  #: [A, K]

    @property
    def fused(self) -> bool:
        """Whether the fused kernel takes them: networks whose hidden layer its registers hold."""
        return self.w1 is not None and self.b1.shape[-1] <= FUSED_HIDDEN

    def to(self, device: torch.device | str) -> Heads:
        """The same on another device."""
        return Heads(*(x if x is None else x.to(device) for x in vars(self).values()))

    def standardised(self, matrix: torch.Tensor) -> torch.Tensor:
        """Rows of the flat matrix ``[n, columns]`` as inputs ``[A, n, F]``."""
        x = matrix[:, self.columns].transpose(0, 1)
        return (x - self.mean[:, None]) / self.std[:, None]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs before the sigmoid ``[A, K, n]`` of standardised inputs ``[A, n, F]``."""
        if self.w1 is None:
            return torch.einsum("anf,akf->akn", x, self.w2) + self.b2[..., None]
        hidden = torch.baddbmm(self.b1.flatten(1)[:, None], x, self.w1.flatten(2)).relu()  # [A, n, K * H]
        return torch.einsum("ankh,akh->akn", hidden.unflatten(2, self.b1.shape[1:]), self.w2) + self.b2[..., None]

    @torch.inference_mode()
    def predict(self, signals: torch.Tensor) -> torch.Tensor:
        """Predicted utility ``[A, K, n]`` float32 of a context; signals ``[gdn_layers, n, gdn_heads, 3]``."""
        rows = flat(signals.float()).split(CHUNK)
        out = torch.cat([self.logits(self.standardised(part)) for part in rows], -1)
        return out if self.w1 is None else out.sigmoid()


@dataclass
class Estimators:
    """Trained estimators with what they were trained on; ``layer_gates`` are the weights of the allocation (§4.2)."""

    heads: Heads
    layer_gates: torch.Tensor | None  #: [attention_layers] mean output gate, None for a model without one
    geometry: Geometry
    fingerprint: str
    model: str
    corpora: list[str]
    recipe: dict[str, Any]
    seconds: float = math.nan  #: of training; unknown of estimators that come from a file

    def score(self, signals: torch.Tensor) -> list[torch.Tensor]:
        """Predicted utility of every entry: per attention layer ``[kv_heads, n]`` float32.

        signals ``[gdn_layers, n, gdn_heads, 3]``. Raises InputError when the signals are not of the model's shape.
        """
        g = self.geometry
        if signals.ndim != 4 or (signals.shape[0], *signals.shape[2:]) != (len(g.gdn_layers), g.gdn_heads, SIGNALS):
            raise InputError(
                f"signals of shape {tuple(signals.shape)} do not fit estimators of {self.model}; use its own prefill."
            )
        self.heads = self.heads.to(signals.device)
        return list(self.heads.predict(signals))

    def save(self, path: str | Path) -> None:
        """Write weights and metadata as safetensors."""
        tensors = {name: x for name, x in vars(self.heads).items() if x is not None}
        if self.layer_gates is not None:
            tensors["layer_gates"] = self.layer_gates
        meta = {
            "kind": KIND,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "geometry": self.geometry.as_dict(),
            "corpora": self.corpora,
            "recipe": self.recipe,
            "tensors": sorted(tensors),
        }
        tensorfile.write(path, tensors, meta)


def load(path: str | Path, geometry: Geometry, fingerprint: str) -> Estimators:
    """Estimators of a model from their file; InputError when it is missing, corrupt or another model's."""
    file = tensorfile.TensorFile(path, KIND, REMEDY)
    file.belongs_to(fingerprint, geometry.as_dict())
    found = {name: file.read(name) for name in file.meta["tensors"]}
    for name, x in found.items():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise file.fault(f"holds values of {name} that are not finite")
    gates = found.pop("layer_gates", None)
    heads = Heads(**{name: found.get(name) for name in Heads.__dataclass_fields__})
    meta = file.meta
    return Estimators(heads, gates, geometry, fingerprint, meta["model"], meta["corpora"], meta["recipe"])
