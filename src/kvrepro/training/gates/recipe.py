"""How write gates are trained, after WG-KV §3.3 and Appendix C: a file of ``config/write_gates`` a model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from kvrepro.errors import InputError, unknown
from kvrepro.models.gated_attention import FLOORS
from kvrepro.training.gates.recipe_file import gate_settings, head_settings

#: The loss on gates: the paper's mean of g + g(1 - g), or the published code's, which weighs a token by the share of
#: later queries that see it beyond the window: mean of o + (1 - o)(2g - g²), o = min(W / (T - t), 1).
SPARSITIES = ("paper", "reach")

#: How retrieval heads are identified: as DuoAttention's authors do it, or as WG-KV's published code does.
FORMS = ("duo", "wg_kv")

WARMUP = 0.1  #: share of the steps with a rising learning rate, of gates and of heads by ``wg_kv``


def warmed(step: int, steps: int, warmup: float) -> float:
    """Share of the learning rate that a step has, counted from zero: linear warm-up, then a cosine to zero."""
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


@dataclass(frozen=True)
class GateRecipe:
    """Settings of a run; lengths and windows in tokens.

    ``expansion`` hidden units per head width (the published code: 4 for Llama, 1.5 for Qwen3; the paper says none).
    ``lengths`` maps a row length to its share of the steps; a step has ``batch_tokens // length`` rows, at least one.
    ``sources`` are described in :mod:`kvrepro.training.gates.rows`. ``floor`` and ``epsilon`` bound log g
    (:func:`kvrepro.models.gated_attention.distant_bias`), ``sparsity`` is a name of SPARSITIES. ``warmup`` is the share
    of steps with a rising learning rate, after which a cosine falls to zero. ``checkpoint_activations`` computes the
    layers again in the backward pass, for models that would not fit otherwise. So many λ ``together`` are trained as
    rows of one batch: they see the same text, which is made once, as is the frozen model's forward. ``validation`` rows
    of held-out text per length measure loss and cache size at each of ``thresholds``.
    """

    window: int
    expansion: float
    steps: int
    lengths: Mapping[int, float]
    batch_tokens: int
    sources: list[Mapping[str, Any]]
    learning_rate: float = 0.001
    weight_decay: float = 0.01
    warmup: float = WARMUP
    floor: str = "epsilon"
    epsilon: float = 1e-6
    sparsity: str = "paper"
    checkpoint_activations: bool = False
    together: int = 1
    validation: int = 8
    thresholds: tuple[float, ...] = (0.1,)
    log_every: int = 50
    checkpoint_seconds: float = 60.0
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(self, "lengths", {int(n): float(share) for n, share in self.lengths.items()})
        object.__setattr__(self, "thresholds", tuple(self.thresholds))
        if not self.lengths or min(self.lengths) < 2 or min(self.lengths.values()) <= 0:
            raise InputError("write_gates.lengths: map row lengths of at least 2 tokens to shares above 0.")
        if self.window < 1 or self.window >= max(self.lengths):
            raise InputError(
                f"write_gates.window: {self.window} tokens must be at least 1 and less than the longest row "
                f"({max(self.lengths)}), or no gate has an effect."
            )
        if min(self.steps, self.batch_tokens, self.together, self.validation, self.log_every) < 1:
            raise InputError("write_gates: steps, batch_tokens, together, validation and log_every must be at least 1.")
        if min(self.learning_rate, self.epsilon, self.expansion) <= 0 or self.weight_decay < 0:
            raise InputError("write_gates: learning_rate, epsilon and expansion must be above 0.")
        if not 0 <= self.warmup < 1:
            raise InputError(f"write_gates.warmup: {self.warmup} is no share of the steps; give 0 to below 1.")
        if any(not 0 <= t <= 1 for t in self.thresholds):
            raise InputError(f"write_gates.thresholds: {list(self.thresholds)} must lie in [0, 1].")
        for key, value, allowed in (("floor", self.floor, FLOORS), ("sparsity", self.sparsity, SPARSITIES)):
            if value not in allowed:
                raise unknown(key, value, allowed, f"write_gates.{key}")

    @classmethod
    def read(cls, path: str | Path, over: Mapping[str, Any] | None = None) -> tuple[GateRecipe, list[float]]:
        """Recipe and lambdas of a model's file (``config/write_gates``), with the keys of ``over`` in place of its."""
        settings, lambdas = gate_settings(path, over)
        return cls.from_settings(settings), lambdas

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> GateRecipe:
        """A recipe from a config's section; InputError names an unknown or missing key."""
        known = {f.name for f in fields(cls)}
        for key in settings:
            if key not in known:
                raise unknown("key", key, known, "write_gates")
        try:
            return cls(**settings)
        except TypeError as error:
            raise InputError(f"write_gates: {error}; give every key that has no default.") from error

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for metadata and for the identity of a run."""
        return json.loads(json.dumps(asdict(self) | {"sources": [dict(s) for s in self.sources]}))

    def identity(self, *more: Any) -> str:
        """First 16 hex digits of a SHA-256 over what decides the result of a run."""
        silent = {"log_every", "checkpoint_seconds", "together"}
        content = [{k: v for k, v in self.as_dict().items() if k not in silent}, *more]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def hidden(self, head_dim: int) -> int:
        """Hidden units of a head's gate."""
        return max(1, int(head_dim * self.expansion))

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from zero: linear warm-up, then a cosine to zero."""
        return self.learning_rate * warmed(step, self.steps, self.warmup)

    def schedule(self) -> np.ndarray:
        """Row length of every step: the shares to within a step, in a random order that the seed decides."""
        lengths = sorted(self.lengths)
        ends = np.cumsum([self.lengths[n] for n in lengths])
        counts = np.diff(np.rint(ends / ends[-1] * self.steps).astype(int), prepend=0)
        return np.random.default_rng([self.seed, 1]).permutation(np.repeat(lengths, counts))


@dataclass(frozen=True)
class HeadRecipe:
    """Settings of head identification, the key ``head_profile``; lengths, sinks and window in tokens.

    ``form`` is a name of FORMS (:mod:`kvrepro.training.gates.heads`). ``pull`` weighs the pressure on the heads' gates:
    their sum for ``duo``, their mean for ``wg_kv``. ``passkeys`` of ``words`` words are hidden in rows of the corpora
    (``duo``). ``pattern`` is the path of a published pattern, which is taken in the place of an identification.
    """

    form: str = "duo"
    sinks: int = 128
    window: int = 256
    steps: int = 2000
    learning_rate: float = 0.02
    pull: float = 0.05
    lengths: tuple[int, int] = (1000, 32000)
    passkeys: int = 10
    words: int = 32
    corpora: tuple[str, ...] = ("kjv",)
    pattern: str | None = None
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(self, "lengths", tuple(self.lengths))
        object.__setattr__(self, "corpora", tuple(self.corpora))
        if self.form not in FORMS:
            raise unknown("form", self.form, FORMS, "head_profile.form")
        if min(self.sinks, self.window, self.steps, self.passkeys, self.words) < 1 or self.pull < 0:
            raise InputError(
                "head_profile: sinks, window, steps, passkeys and words must be at least 1, pull at least 0."
            )
        if len(self.lengths) != 2 or not 1 <= self.lengths[0] <= self.lengths[1]:
            raise InputError(f"head_profile.lengths: {list(self.lengths)} is no range; give shortest and longest.")

    @classmethod
    def read(cls, path: str | Path, over: Mapping[str, Any] | None = None) -> HeadRecipe:
        """The key ``head_profile`` of a model's file, with the keys of ``over`` in place of its."""
        return cls.from_settings(head_settings(path, over), f"{path}: head_profile")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], where: str = "head_profile") -> HeadRecipe:
        """A recipe from a config's section; InputError, naming the key ``where``, names an unknown key."""
        known = [f.name for f in fields(cls)]
        for key in settings:
            if key not in known:
                raise unknown("key", key, known, where)
        return cls(**settings)

    def rate(self, step: int) -> float:
        """Learning rate: for ``duo`` a trapezoid of 20, 60 and 20 % of the steps with a floor of a tenth, for ``wg_kv``
        the schedule of gates with a warm-up of a tenth."""
        if self.form == "wg_kv":
            return self.learning_rate * warmed(step, self.steps, WARMUP)
        done = (step + 1) / self.steps
        return self.learning_rate * max(0.1, min(1.0, done / 0.2, (1 - done) / 0.2))
