"""Queries on attention in code and on what every head admits (WG-KV §2.3, Appendix H, Figures 3 and 13)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvrepro.analysis import bootstrap, patterns
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.claims.evidence import Evidence, NoRows, exact


def distant_attention_share(evidence: Evidence) -> Estimate:
    """Share of the attention from outside the local window that the tenth of the tokens with the most of it receives,
    mean over query heads and documents."""
    evidence.of(patterns.UTILITY)
    return patterns.per_document(evidence.rows, "top_tenth_share")


def crosswise_pairs(evidence: Evidence) -> Estimate:
    """Pairs of tokens, one in the top tenth of a query head and the bottom half of another, the other the other way
    round, of the two heads with the most such pairs; mean over documents."""
    evidence.of(patterns.UTILITY)
    return patterns.per_document(evidence.rows, "crosswise_pairs")


def transient_attention(evidence: Evidence) -> Estimate:
    """Mean attention within the local window over that beyond it, of the half of the tokens with the least of the
    latter; both are means over query heads and documents."""
    evidence.of(patterns.UTILITY)
    found = bootstrap.units(patterns.of(evidence.rows, patterns.UTILITY), "item", ["metric"])
    pair = found[["near_of_ignored", "far_of_ignored"]].to_numpy()
    return bootstrap.mean([pair]).map(lambda x: x[..., 0] / x[..., 1])


def head_size_ratio(evidence: Evidence, a: str, b: str, statistic: str) -> Estimate:
    """The mean normalised cache size of all heads on contexts of kind a over that of kind b, or the same of the
    coefficient of variation over heads."""
    found = _sizes(evidence)
    if missing := {a, b} - set(found):
        raise NoRows(f"cache sizes on {', '.join(sorted(missing))}")
    of = {"mean": lambda maps: maps.mean((-2, -1)), "variation": patterns.variation}[statistic]
    own, other = found[a].map(of), found[b].map(of)
    shuffled = np.random.default_rng(0).permutation(other.draws)  # the contexts of the two kinds are drawn apart
    return Estimate(own.value / other.value, own.draws / shuffled, min(own.units, other.units))


def head_size_span(evidence: Evidence, of: str) -> Estimate:
    """The longest cache over the shortest after a context, mean over the contexts of all kinds: of the heads of a
    layer, in the layer where this is smallest, or of the layers' means."""
    evidence.of(patterns.SIZES)
    maps = patterns.maps(evidence.rows).values()
    blocks = [_span(each.mean(-1))[:, None] if of == "layers" else _span(each) for each in maps]
    return bootstrap.mean(blocks).map(lambda spans: spans.min(-1))


def _span(sizes: np.ndarray) -> np.ndarray:
    """The largest over the smallest of the last axis."""
    return sizes.max(-1) / sizes.min(-1)


def gate_identity(evidence: Evidence, check: str) -> Estimate:
    """How far gated attention, or what a cache holds, is from its definition: the most over layers and documents."""
    rows = evidence.of(patterns.IDENTITIES)
    values = rows.loc[rows["metric"] == check, "value"]
    if values.empty:
        raise NoRows(check)
    return exact(values.max())


def neighbouring_heads(evidence: Evidence) -> Estimate:
    """The largest difference of normalised cache size between neighbouring heads of a layer, mean over all contexts."""
    found = list(_sizes(evidence).values())
    mean = Estimate(
        np.mean([each.value for each in found], axis=0),
        np.mean([each.draws for each in found], axis=0),
        min(each.units for each in found),
    )
    return mean.map(lambda maps: np.abs(np.diff(maps, axis=-1)).max((-2, -1)))


def _sizes(evidence: Evidence) -> dict[str, Estimate]:
    evidence.of(patterns.SIZES)
    return evidence.read(patterns.sizes)


PATTERN_QUERIES: tuple[Callable[..., Estimate], ...] = (
    distant_attention_share,
    crosswise_pairs,
    transient_attention,
    head_size_ratio,
    head_size_span,
    gate_identity,
    neighbouring_heads,
)
