"""Local Attention: sinks and a sliding window, the same for every head and input (WG-KV Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvrepro.cache.admitted import Policy
from kvrepro.cache.ragged import UNLIMITED
from kvrepro.errors import InputError
from kvrepro.methods.admission.base import Admission


@dataclass
class LocalAttention(Admission):
    """Admits the first ``sinks`` tokens; the window takes the rest of the budget.

    The paper fixes 128 sinks at 32K tokens and varies the window (§5.2); shorter contexts scale the sinks with it.
    Positions are the original ones.
    """

    name = "local_attention"
    by_fraction = True
    sinks: int = 128

    def __post_init__(self):
        if self.sinks < 0:
            raise InputError(f"local_attention: {self.sinks} sinks are no number of tokens; give 0 or more.")

    def admit(
        self, layer: int, keys_pre_rope: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """One for sinks, zero for the rest."""
        return (positions < self.sinks).to(keys.dtype).expand(keys.shape[:3])

    def policy(self, kept: float | None, n: int) -> Policy:
        """Window = round(kept * n) - sinks, at least one token; no limit at kept fraction 1.0."""
        if kept == 1.0:
            return Policy(UNLIMITED, self.admit, entries=n)
        window = round(kept * n) - self.sinks
        if not 0 < kept <= 1 or window < 1:
            raise InputError(
                f"local_attention: kept fraction {kept} of {n} tokens leaves no window beside {self.sinks} sinks; "
                "raise it (at most 1) or lower local_attention.sinks."
            )
        return Policy(window, self.admit, entries=self.sinks + window)
