"""Write gates: how useful will an entry be, judged from its key before the write (WG-KV §3.2).

One gate per attention layer and KV head, trained for one model by :mod:`kvrepro.training.gates`. The same function in
one kernel is :mod:`kvrepro.kernels.write_gate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from kvrepro import tensorfile
from kvrepro.errors import InputError
from kvrepro.models.geometry import Geometry

if TYPE_CHECKING:  # it imports transformers, which takes longer than to join files
    from kvrepro.models.loading import LoadedModel

EPS = 1e-6  #: of both norms, as in the published code
KIND = "write_gates"
REMEDY = "train the gates of this model (python -m kvrepro.training.gates.train)"


def gate_logits(pre, post, norm_pre, norm_post, w1, b1, w2, b2) -> torch.Tensor:
    """Gates of one layer before the sigmoid, float32 ``[batch, kv_heads, n]``; arguments as :class:`LayerGate`."""
    d = pre.shape[-1]
    x = torch.cat(
        [F.rms_norm(pre, (d,), norm_pre.to(pre.dtype), EPS), F.rms_norm(post, (d,), norm_post.to(post.dtype), EPS)], -1
    )
    hidden = F.gelu(x @ w1.to(x.dtype).mT + b1.to(x.dtype)[:, None])
    wide = torch.promote_types(x.dtype, torch.float32)
    return (hidden.to(wide) * w2.to(wide)[:, None]).sum(-1) + b2.to(wide)[:, None]


class LayerGate(torch.nn.Module):
    """Gates of the KV heads of one layer: σ(W2 · GELU(W1 [RMSNorm(k); RMSNorm(k_rope)] + b1) + b2).

    norm_pre, norm_post ``[head_dim]``, shared by the heads; w1 ``[kv_heads, hidden, 2 * head_dim]``, b1 and w2
    ``[kv_heads, hidden]``, b2 ``[kv_heads]``. The paper does not say how weights begin; as in the published code norms
    are one and the rest is drawn as torch draws linear layers.
    """

    def __init__(self, kv_heads: int, head_dim: int, hidden: int, generator: torch.Generator | None = None):
        super().__init__()
        first, second = (2 * head_dim) ** -0.5, hidden**-0.5

        def drawn(bound: float, *size: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(size).uniform_(-bound, bound, generator=generator))

        self.norm_pre = torch.nn.Parameter(torch.ones(head_dim))
        self.norm_post = torch.nn.Parameter(torch.ones(head_dim))
        self.w1, self.b1 = drawn(first, kv_heads, hidden, 2 * head_dim), drawn(first, kv_heads, hidden)
        self.w2, self.b2 = drawn(second, kv_heads, hidden), drawn(second, kv_heads)

    def weights(self) -> tuple[torch.Tensor, ...]:
        """What :func:`gate_logits` takes after the keys, in its order."""
        return self.norm_pre, self.norm_post, self.w1, self.b1, self.w2, self.b2

    def forward(self, keys_pre_rope: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Gates in [0, 1], float32 ``[batch, kv_heads, n]``, of keys ``[batch, kv_heads, n, head_dim]``."""
        return gate_logits(keys_pre_rope, keys, *self.weights()).sigmoid()


def initial(geometry: Geometry, hidden: int, seed: int = 0) -> torch.nn.ModuleList:
    """Untrained gates of all attention layers of a model, in their order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.ModuleList(
        LayerGate(geometry.kv_heads, geometry.head_dim, hidden, generator) for _ in geometry.attention_layers
    )


@dataclass
class WriteGates:
    """Gates of a model with what they were trained on.

    ``window`` is the local window they were trained with, ``trade_off`` their λ (§3.3), and ``training`` what their
    card says: recipe and losses.
    """

    layers: torch.nn.ModuleList
    geometry: Geometry
    fingerprint: str
    model: str
    window: int
    trade_off: float
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def hidden(self) -> int:
        """Hidden units of a head's gate."""
        return self.layers[0].b1.shape[1]

    def parameters(self) -> int:
        """Parameters of all gates."""
        return sum(p.numel() for p in self.layers.parameters())

    def of_layer(self, layer: int) -> LayerGate:
        """The gates of a layer, counted over all layers of the model."""
        return self.layers[self.geometry.attention_layers.index(layer)]


def save_gates(sweep: Sequence[WriteGates], path: str | Path) -> None:
    """Write the gates of one model, trained with one or several λ, to one safetensors file."""
    first, tensors, about = sweep[0], {}, {}
    for gates in sweep:
        if gates.fingerprint != first.fingerprint:
            raise InputError(f"gates of {first.model} and {gates.model} do not go into one file; write one a model.")
        name = f"{gates.trade_off:g}"
        about[name] = {"hidden": gates.hidden, "window": gates.window, "training": gates.training}
        tensors |= {f"{name}/{key}": x for key, x in gates.layers.state_dict().items()}
    meta = {
        "kind": KIND,
        "model": first.model,
        "fingerprint": first.fingerprint,
        "geometry": first.geometry.as_dict(),
        "sweep": about,
    }
    tensorfile.write(path, tensors, meta)


def join_gates(paths: Sequence[str | Path], path: str | Path) -> None:
    """Write what files of :func:`save_gates` hold to one; InputError when they are not all of one model."""
    files = [tensorfile.TensorFile(part, KIND, REMEDY) for part in paths]
    first, tensors, about = files[0].meta, {}, {}
    for file in files:
        file.belongs_to(first["fingerprint"], first["geometry"])
        about |= file.meta["sweep"]
        tensors |= {name: file.read(name) for name in file.names}
    tensorfile.write(path, tensors, first | {"sweep": about})


def load_gates(path: str | Path, lm: LoadedModel, trade_off: float | None = None) -> WriteGates:
    """Gates of a model from their file, on the model's device; those of one λ where there are several.

    Raises InputError when the file is missing, corrupt, of a model with another geometry or other weights, or has no
    gates of that λ.
    """
    file = tensorfile.TensorFile(path, KIND, REMEDY)
    file.belongs_to(lm.fingerprint, lm.geometry.as_dict())
    sweep = file.meta["sweep"]
    if trade_off is None and len(sweep) > 1:
        raise InputError(f"{path} has gates of several lambdas; choose one of {', '.join(sweep)}.")
    name = next(iter(sweep)) if trade_off is None else f"{trade_off:g}"
    if name not in sweep:
        raise InputError(f"{path} has no gates of lambda {name}; choose one of {', '.join(sweep)}, or train them.")
    about = sweep[name]
    layers = initial(lm.geometry, about["hidden"])
    found = {key: file.read(f"{name}/{key}") for key in layers.state_dict()}
    for key, x in found.items():
        if not torch.isfinite(x).all():
            raise file.fault(f"holds values of {key} that are not finite")
    try:
        layers.load_state_dict(found)
    except RuntimeError as error:
        raise file.fault("holds tensors of another shape than its metadata says") from error
    layers.to(lm.device).requires_grad_(False)
    meta = file.meta["model"], about["window"], float(name), about["training"]
    return WriteGates(layers, lm.geometry, lm.fingerprint, *meta)
