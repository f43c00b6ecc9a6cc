"""Mean output gates of a model over calibration documents, head by head (GateSight §4.2, Appendix D)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvrepro import tensorfile
from kvrepro.errors import InputError
from kvrepro.models.capture import group_gates, prefill
from kvrepro.models.loading import LoadedModel

KIND = "gate_statistics"
REMEDY = "run the workflow to measure the gates"


@dataclass(frozen=True)
class GateStatistics:
    """Means over all tokens of all calibration documents."""

    query_heads: torch.Tensor  #: [attention_layers, query_heads] float32
    kv_heads: torch.Tensor  #: [attention_layers, kv_heads] float32, of the largest gate of each GQA group

    def save(self, path: str | Path, lm: LoadedModel) -> None:
        """Write as safetensors with the model they belong to."""
        tensorfile.write(path, vars(self), {"kind": KIND, **lm.identity()})


def load(path: str | Path, lm: LoadedModel) -> GateStatistics:
    """Statistics from their file; InputError when it is missing, corrupt or another model's."""
    file = tensorfile.TensorFile(path, KIND, REMEDY)
    file.belongs_to(lm.fingerprint, lm.geometry.as_dict())
    return GateStatistics(*(file.read(name) for name in GateStatistics.__dataclass_fields__))


def measure(lm: LoadedModel, documents: Sequence[torch.Tensor]) -> GateStatistics:
    """Prefill documents, tokens ``[n]`` each, and average their gates. InputError for a model without output gates or
    when there are no documents."""
    if not lm.geometry.output_gate:
        raise InputError(f"{lm.name} has no attention output gate; use a hybrid.")
    if not documents:
        raise InputError("there are no documents to measure gates on; name corpora under labels.")
    query, kv, tokens = 0.0, 0.0, 0
    for document in documents:
        parent = prefill(lm, document, query_window=1)
        query = query + torch.stack([gate.sum(-1) for gate in parent.output_gates]).double().cpu()
        kv = kv + parent.n * group_gates(parent).double().cpu()
        tokens += parent.n
    return GateStatistics((query / tokens).float(), (kv / tokens).float())
