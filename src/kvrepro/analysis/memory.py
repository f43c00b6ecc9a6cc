"""How long GDN heads remember, and which of them are slow (GateSight §3.1, Appendix C)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvrepro.labels.corpus import LabelledCorpus, Labels
from kvrepro.models.capture import LOG_DECAY, decoder_layers
from kvrepro.models.loading import LoadedModel


def half_life(doc: Labels) -> torch.Tensor:
    """ln 0.5 over the mean log-decay of a document: ``[gdn_layers, gdn_heads]`` float64, in tokens."""
    return math.log(0.5) / doc.signals[..., LOG_DECAY].double().mean(1).clamp(max=-1e-9)


def half_lives(labelled: Sequence[LabelledCorpus]) -> torch.Tensor:
    """Half-lives in each document: ``[documents, gdn_layers, gdn_heads]``, in tokens."""
    return torch.stack([half_life(doc) for corpus in labelled for doc in corpus])


def static_half_lives(lm: LoadedModel) -> torch.Tensor:
    """Half-life at zero input, ln 2 / (exp(A_log) softplus(dt_bias)), from the weights: [gdn_layers, gdn_heads]."""
    layers = [decoder_layers(lm.model)[i].linear_attn for i in lm.geometry.gdn_layers]
    rates = [x.A_log.double().exp() * torch.nn.functional.softplus(x.dt_bias.double()) for x in layers]
    return math.log(2) / torch.stack(rates).cpu()


@dataclass(frozen=True)
class SlowHeads:
    """Heads whose median half-life over all documents is at least ``threshold`` tokens; fixed for every document."""

    median: torch.Tensor  #: [gdn_layers, gdn_heads], tokens
    threshold: float

    @property
    def mask(self) -> torch.Tensor:
        """``[gdn_layers, gdn_heads]`` bool."""
        return self.median >= self.threshold

    def within(self, layers: list[int]) -> tuple[torch.Tensor, bool]:
        """Slow heads of some GDN layers, ``[len(layers), gdn_heads]`` bool, and whether this is a stand-in: where no
        head reaches the threshold, the slowest one is taken, so that the predictor exists in every layer."""
        mask = self.mask[layers]
        if mask.any():
            return mask, False
        return self.median[layers] == self.median[layers].max(), True


def slow_heads(labelled: Sequence[LabelledCorpus], threshold: float) -> SlowHeads:
    """The slow set of all documents. The paper's threshold is 1,000 tokens, which is the length of its documents."""
    return SlowHeads(half_lives(labelled).median(0).values, threshold)
