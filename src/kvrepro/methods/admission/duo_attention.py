"""DuoAttention: retrieval heads write everything, the others sinks and a window (WG-KV Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from kvrepro.cache.admitted import Policy
from kvrepro.errors import InputError
from kvrepro.methods import head_profile
from kvrepro.methods.admission.base import Admission
from kvrepro.models.loading import LoadedModel


@dataclass
class DuoAttention(Admission):
    """A kept fraction sets how many heads are retrieval heads: those that gain most from the whole context.

    Which they are was identified for the model by optimisation (``head_profile``); ``pattern`` names a published file
    (``full_attention_heads.tsv``) in its place. Ties are broken by noise from ``seed``. The count is of the whole
    model, so layers hold different amounts.
    """

    name = "duo_attention"
    by_fraction = True
    artifacts = ("head_profile",)
    sinks: int = 128
    window: int = 256
    pattern: str | None = None
    seed: int = 0
    head_profile: str = ""

    def __post_init__(self):
        self._profile, self._lm = None, None
        if min(self.sinks, self.window) < 1:
            raise InputError("duo_attention: sinks and window must be at least 1 token.")

    def prepare(self, lm: LoadedModel) -> None:
        """Read the profile of the model."""
        self._profile = head_profile.load(self.pattern or self.head_profile, lm)
        self._lm = lm

    def retrieval_share(self, kept: float, n: int) -> float:
        """Share of the heads that hold all ``n`` tokens when the others hold sinks and window and ``kept * n`` are held
        on average. InputError when that is not between 0 and 1."""
        short = min(self.sinks + self.window, n)
        if not 0 < kept <= 1 or kept * n < short:
            raise InputError(
                f"duo_attention: kept fraction {kept} of {n} tokens is less than {self.sinks} sinks and a window of "
                f"{self.window}; raise it (at most 1) or lower duo_attention.sinks and window."
            )
        return (kept * n - short) / (n - short) if n > short else 1.0

    def policy(self, kept: float | None, n: int) -> Policy:
        """Retrieval heads admit everything, the others the sinks."""
        share = self.retrieval_share(kept, n)
        if self._profile is None:  # a config is being checked
            return Policy(self.window, partial(self._admit, {}))
        chosen = self._profile.retrieval_heads(round(share * self._profile.gates.numel()), self.seed)
        layers = self._lm.geometry.attention_layers
        # moved once, since a step that a GPU replays can copy nothing from the host
        return Policy(self.window, partial(self._admit, dict(zip(layers, chosen.to(self._lm.device), strict=True))))

    def _admit(self, retrieval, layer: int, keys_pre_rope, keys: torch.Tensor, positions) -> torch.Tensor:
        return (retrieval[layer][:, None] | (positions < self.sinks)).to(keys.dtype).expand(keys.shape[:3])
