"""Named tensors with JSON metadata in one safetensors file: written atomically, checksummed, read lazily."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kvrepro.errors import InputError
from kvrepro.files import atomic


def write(path: str | Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
    """Write ``tensors`` and ``meta`` (JSON values) to ``path``; each tensor's SHA-256 goes into the file."""
    tensors = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    record = {"meta": json.dumps(meta), "sha256": json.dumps({name: _sha256(x) for name, x in tensors.items()})}
    with atomic(Path(path)) as temporary:
        save_file(tensors, temporary, metadata=record)


class TensorFile:
    """A file of :func:`write`, open for reading. ``meta`` is read at once, a tensor when it is asked for.

    Raises InputError naming the file and ``remedy`` when it is missing, truncated, corrupt or of another ``kind``
    (``meta["kind"]``).
    """

    def __init__(self, path: str | Path, kind: str, remedy: str):
        self.path, self._remedy = Path(path), remedy
        if not self.path.exists():
            raise InputError(f"{path} is missing; {remedy}.")
        try:
            self._file = safe_open(self.path, framework="pt")
            record = self._file.metadata()
            self.meta: dict[str, Any] = json.loads(record["meta"])
            self._sums: dict[str, str] = json.loads(record["sha256"])
        except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
            raise self.fault(f"is truncated or corrupt ({error or type(error).__name__})") from error
        if self.meta.get("kind") != kind:
            raise self.fault(f"holds {self.meta.get('kind')!r}, not {kind!r}")

    @property
    def names(self) -> list[str]:
        """The tensors' names, in the order in which they were written."""
        return list(self._sums)

    def fault(self, what: str) -> InputError:
        """An InputError that names this file, ``what`` is wrong with it, and the remedy."""
        return InputError(f"{self.path} {what}; delete it and {self._remedy}.")

    def belongs_to(self, fingerprint: str, geometry: dict[str, Any]) -> None:
        """InputError unless the file was made for the model with this fingerprint and geometry."""
        if self.meta["fingerprint"] != fingerprint or self.meta["geometry"] != geometry:
            raise self.fault(
                f"was made for another model ({self.meta.get('model')!r}, fingerprint {self.meta['fingerprint']}, "
                f"not {fingerprint})"
            )

    def read(self, name: str) -> torch.Tensor:
        """One tensor, checked against its SHA-256."""
        try:
            tensor = self._file.get_tensor(name)
            if _sha256(tensor) != self._sums[name]:
                raise ValueError(f"tensor {name!r} differs from its checksum")
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise self.fault(f"is truncated or corrupt ({error})") from error
        return tensor


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
