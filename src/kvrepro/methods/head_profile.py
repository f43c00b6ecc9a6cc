"""Which heads need the whole cache: DuoAttention's profile of a model, trained here or as its authors publish it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvrepro import tensorfile
from kvrepro.errors import InputError
from kvrepro.models.loading import LoadedModel

KIND = "head_profile"
REMEDY = "identify the heads of this model (python -m kvrepro.training.gates.heads)"
PATTERN = "full_attention_heads.tsv"  #: name of the authors' files: a line a layer, a column a KV head


@dataclass
class HeadProfile:
    """How much each head gains from the whole context: ``gates`` ``[attention_layers, kv_heads]`` in [0, 1]."""

    gates: torch.Tensor
    training: dict[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path, lm: LoadedModel) -> None:
        """Write the profile with the model it belongs to."""
        meta = {"kind": KIND, **lm.identity(), "training": self.training}
        tensorfile.write(path, {"gates": self.gates}, meta)

    def retrieval_heads(self, count: int, seed: int = 0) -> torch.Tensor:
        """The ``count`` heads with the largest gates, ``[attention_layers, kv_heads]`` bool. Ties are broken by noise
        of at most 1e-6, as its authors do, from a seed."""
        noise = torch.rand(self.gates.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1e-6
        chosen = torch.zeros(self.gates.numel(), dtype=torch.bool)
        chosen[(self.gates.double() + noise).flatten().topk(count).indices] = True
        return chosen.view_as(self.gates)


def load(path: str | Path, lm: LoadedModel) -> HeadProfile:
    """A profile from our file or from a published pattern (``.tsv``).

    A pattern names no model, so only its shape can be checked. Raises InputError when the file is missing, corrupt or
    of another model.
    """
    path, shape = Path(path), (len(lm.geometry.attention_layers), lm.geometry.kv_heads)
    if path.suffix == ".tsv":
        gates = _pattern(path)
        if gates.shape != shape:
            raise InputError(
                f"{path} has {gates.shape[0]} layers of {gates.shape[1]} KV heads but {lm.name} has {shape[0]} of "
                f"{shape[1]}; take the pattern of this model."
            )
        return HeadProfile(gates, {"source": path.name})
    file = tensorfile.TensorFile(path, KIND, REMEDY)
    file.belongs_to(lm.fingerprint, lm.geometry.as_dict())
    return HeadProfile(file.read("gates"), file.meta["training"])


def _pattern(path: Path) -> torch.Tensor:
    try:
        gates = torch.from_numpy(np.loadtxt(path, dtype=np.float64, delimiter="\t", ndmin=2)).float()
    except FileNotFoundError:
        raise InputError(f"{path} is missing; download the pattern or name the place where it is.") from None
    except ValueError as error:
        raise InputError(f"{path} is no table of numbers separated by tabs ({error}); download it again.") from error
    if not (torch.isfinite(gates).all() and gates.min() >= 0 and gates.max() <= 1):
        raise InputError(f"{path} holds values outside [0, 1]; a pattern of {PATTERN} is expected.")
    return gates
