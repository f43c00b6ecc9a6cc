"""What is profiled: ``config/latency.yaml`` as objects, and every job in the order of its importance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvrepro import yamlfile
from kvrepro.errors import InputError, unknown

CONFIG = Path("config/latency.yaml")
METHODS = ("full", "wg_kv")
PHASES = ("prefill", "decode")
#: *paper*: transformers as it is, FlashAttention-2 through SDPA, one unchunked forward. *strongest_baseline*: the
#: fastest dense prefill kernel at hand, position-wise work in chunks, dense decode with our own split-KV kernel, CUDA
#: graphs.
PROTOCOLS = ("paper", "strongest_baseline")


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder, with the numbers of its published config."""

    name: str
    config: Mapping[str, Any]  # of the transformers config class of ``model_type``
    gate_hidden: int
    source: str

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return self.config["num_hidden_layers"]

    @property
    def query_heads(self) -> int:
        """Query heads of a layer."""
        return self.config["num_attention_heads"]

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer."""
        return self.config["num_key_value_heads"]

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.config["head_dim"]

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head, before the rotary position."""
        return self.config["model_type"] == "qwen3"

    def parameters(self) -> int:
        """Parameters of the model without gates; tied embeddings count once."""
        c = self.config
        heads = (self.query_heads + 2 * self.kv_heads) * self.head_dim
        layer = c["hidden_size"] * (heads + self.query_heads * self.head_dim + 3 * c["intermediate_size"] + 2)
        layer += 2 * self.head_dim * self.qk_norm
        embeddings = c["vocab_size"] * c["hidden_size"] * (1 if c["tie_word_embeddings"] else 2)
        return self.layers * layer + embeddings + c["hidden_size"]

    def gate_parameters(self) -> int:
        """Parameters of all write gates (§3.2): two norms a layer, two linear maps a KV head."""
        head = (2 * self.head_dim + 1) * self.gate_hidden + self.gate_hidden + 1
        return self.layers * (self.kv_heads * head + 2 * self.head_dim)

    def cache_bytes(self, entries: int, element: int) -> int:
        """Bytes of keys and values of ``entries`` entries in every layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * entries * element


@dataclass(frozen=True)
class Profile:
    """The settings of one profile; the fields are the keys of ``profiles`` in config/latency.yaml."""

    name: str
    device: str
    dtype: str
    models: tuple[str, ...]
    tokens: tuple[int, ...]
    kept: float
    window: int
    steps: int
    seconds: float
    repeats: int
    repeats_below: float
    chunk: int
    sweeps: Mapping[str, Any]
    batch: Mapping[str, Any]
    kernels: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Job:
    """One thing to time; ``layers`` is the most layers a pass times, None for all of the model."""

    experiment: str  # end_to_end, sparsity, window, batch
    model: str
    phase: str
    tokens: int
    method: str
    protocol: str
    kept: float
    window: int
    batch: int = 1
    layers: int | None = None

    @property
    def file(self) -> str:
        """The path of its rows below the folder of a profile."""
        parts = [self.phase, str(self.tokens), self.method, self.protocol]
        if self.experiment != "end_to_end":
            parts = [self.experiment, *parts, f"kept{self.kept:g}", f"window{self.window}", f"batch{self.batch}"]
        return f"{self.model}/{'-'.join(parts)}.parquet"


@dataclass(frozen=True)
class Settings:
    """A profile with the shapes it times and what the paper's text says of them."""

    profile: Profile
    shapes: Mapping[str, Shape]
    published: Mapping[str, Any]


def load(profile: str, path: str | Path = CONFIG) -> Settings:
    """The settings of ``profile``; InputError names what is unknown, missing or impossible."""
    content = yamlfile.mapping(path, "restore it from the repository")
    if profile not in content["profiles"]:
        raise unknown("profile", profile, content["profiles"], str(path))
    raw = content["profiles"][profile]
    given, fields = set(raw), set(Profile.__dataclass_fields__) - {"name"}
    if given != fields:
        wrong = ", ".join(sorted(given ^ fields))
        raise InputError(f"{path}: profile {profile!r} has other keys than expected ({wrong}); add or remove them.")
    shapes = {name: Shape(name, m["config"], m["gate_hidden"], m["source"]) for name, m in content["models"].items()}
    for name in [*raw["models"], raw["sweeps"]["model"], raw["batch"]["model"]]:
        if name not in shapes:
            raise unknown("model", name, shapes, f"{path}: profile {profile!r}")
    if not 0 < raw["kept"] <= 1:
        raise InputError(f"{path}: profile {profile!r}: kept must lie in (0, 1]; it is {raw['kept']}.")
    lists = {key: tuple(raw[key]) for key in ("models", "tokens")}
    return Settings(Profile(**raw | lists | {"name": profile}), shapes, content["published"])


def end_to_end(profile: Profile) -> list[Job]:
    """All jobs of Figures 1, 8 and 15, the ends of the paper's ranges first, then short before long."""
    ends = {profile.tokens[i] for i in (1, 3) if i < len(profile.tokens)}
    order = sorted(profile.tokens, key=lambda n: (n not in ends, n))
    return [
        Job("end_to_end", model, phase, n, method, protocol, profile.kept if method == "wg_kv" else 1.0, profile.window)
        for model in profile.models
        for phase in reversed(PHASES)
        for n in order
        for protocol in PROTOCOLS
        for method in METHODS
    ]


def sweeps(profile: Profile) -> list[Job]:
    """Sparsity and window sweeps: prefill with a few layers, decode with all, under the strongest baseline."""
    s = profile.sweeps
    jobs = []
    for phase in PHASES:
        base = Job(
            "sparsity",
            s["model"],
            phase,
            s["tokens"],
            "wg_kv",
            "strongest_baseline",
            profile.kept,
            profile.window,
            layers=s["layers"] if phase == "prefill" else None,
        )
        jobs += [replace(base, kept=kept) for kept in s["kept"]]
        jobs += [replace(base, experiment="window", window=window) for window in s["window"]]
    return jobs


def batches(profile: Profile) -> list[Job]:
    """The batch sweep: decode steps of both methods with several contexts at once."""
    return [
        Job(
            "batch",
            profile.batch["model"],
            "decode",
            tokens,
            method,
            "strongest_baseline",
            profile.kept if method == "wg_kv" else 1.0,
            profile.window,
            size,
        )
        for tokens, sizes in profile.batch["sizes"].items()
        for size in sizes
        for method in METHODS
    ]
