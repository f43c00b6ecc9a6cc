"""Queries of the ledger on latency and memory: each computes one number from the profile rows of one model.

Times of passes that left layers out answer nothing: their claims are *not run here*. A time is one measurement, or the
median or mean of several, and has no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from kvrepro.analysis.bootstrap import Estimate
from kvrepro.claims.evidence import Evidence, NoRows, exact
from kvrepro.profiling import summary

K = 1024  # tokens
PAPER = "paper"  #: the protocol of a claim that names none
#: The shortest and the longest context of the range that the paper gives of a model: §5.3, Appendix J.2.
RANGE = {"Llama-3.1-8B-Instruct": (200 * K, 400 * K), "Qwen3-4B-Instruct-2507": (200 * K, 500 * K)}
ENDS = ("shortest", "longest")


def _number(evidence: Evidence, phase: str, tokens: int, method: str, protocol: str, metric: str, part: str) -> float:
    rows = evidence.of(summary.END_TO_END)
    found = summary.value(rows, evidence.model, phase, tokens, method, protocol, metric, part)
    if found is None or not found.whole or not np.isfinite(found.value):
        raise NoRows(f"{part} of {method} in {phase} at {tokens} tokens")
    return found.value


def speedup(
    evidence: Evidence, phase: str, tokens: int | str, component: str = "total", protocol: str = PAPER
) -> Estimate:
    """Seconds of full attention over seconds of WG-KV, at a length or at one of the ENDS of the model's range."""
    if tokens in ENDS:
        if evidence.model not in RANGE:
            raise NoRows(f"a range of {evidence.model}")
        tokens = RANGE[evidence.model][ENDS.index(tokens)]
    full, ours = (_number(evidence, phase, tokens, m, protocol, "seconds", component) for m in ("full", "wg_kv"))
    return exact(full / ours)


def slowdown(evidence: Evidence, phase: str, tokens: int, component: str, protocol: str = PAPER) -> Estimate:
    """Seconds of WG-KV over seconds of full attention."""
    return speedup(evidence, phase, tokens, component, protocol).map(lambda x: 1 / x)


def memory_saving(evidence: Evidence, tokens: int, protocol: str = PAPER) -> Estimate:
    """Percent of weights and cache that WG-KV saves while decoding, the paper's accounting."""
    full, ours = (
        sum(_number(evidence, "decode", tokens, method, protocol, "bytes", part) for part in ("weights", "cache"))
        for method in ("full", "wg_kv")
    )
    return exact(100 * (1 - ours / full))


def time_share(evidence: Evidence, phase: str, tokens: int, protocol: str = PAPER) -> Estimate:
    """Attention's share of the time of full attention."""
    attention, total = (
        _number(evidence, phase, tokens, "full", protocol, "seconds", part) for part in ("attention", "total")
    )
    return exact(attention / total)


def time_share_rise(evidence: Evidence, phase: str, lengths: Sequence[int], protocol: str = PAPER) -> Estimate:
    """The smallest rise of attention's share between neighbouring lengths."""
    shares = [time_share(evidence, phase, tokens, protocol).value for tokens in sorted(lengths)]
    return exact(min(b - a for a, b in pairwise(shares)))


def time_growth(evidence: Evidence, phase: str, short: int, long: int, protocol: str = PAPER) -> Estimate:
    """Attention time of full attention at a long context over that at a short one."""
    a, b = (_number(evidence, phase, tokens, "full", protocol, "seconds", "attention") for tokens in (short, long))
    return exact(b / a)


def cache_share_of_memory(evidence: Evidence, tokens: int) -> Estimate:
    """The cache's share of weights and cache under full attention."""
    weights, cache = (
        _number(evidence, "decode", tokens, "full", "paper", "bytes", part) for part in ("weights", "cache")
    )
    return exact(cache / (weights + cache))


def saved_in_attention(evidence: Evidence, phase: str, tokens: int, protocol: str = PAPER) -> Estimate:
    """The share of the time saved by WG-KV that is saved in attention."""
    saved = [
        _number(evidence, phase, tokens, "full", protocol, "seconds", part)
        - _number(evidence, phase, tokens, "wg_kv", protocol, "seconds", part)
        for part in ("attention", "total")
    ]
    return exact(saved[0] / saved[1])


def out_of_memory_from(evidence: Evidence, protocol: str = PAPER) -> Estimate:
    """Thousand tokens of the shortest context that full attention cannot prefill; twice the longest where none."""
    failed, done = _prefills(evidence, "full", protocol)
    return exact(min(failed, default=2 * max(done, default=0)) / K)


def longest_prefill(evidence: Evidence, protocol: str = PAPER) -> Estimate:
    """Thousand tokens of the longest context whose prefill by WG-KV does not run out of memory."""
    _, done = _prefills(evidence, "wg_kv", protocol)
    return exact(max(done, default=0) / K)


def _prefills(evidence: Evidence, method: str, protocol: str) -> tuple[list[int], list[int]]:
    """Lengths that failed for want of memory, and lengths that did not, however many layers were computed."""
    rows = evidence.of(summary.END_TO_END)
    rows = rows[(rows["task"] == "prefill") & (rows["method"] == method) & (rows["protocol"] == protocol)]
    rows = rows[(rows["metric"] == "seconds") & (rows["component"] == "total")]
    if rows.empty:
        raise NoRows(f"prefill of {method}")
    failed = rows["value"].isna()
    return sorted(rows.loc[failed, "n_tokens"]), sorted(rows.loc[~failed, "n_tokens"])


def gate_parameters(evidence: Evidence, tokens: int, protocol: str = PAPER) -> Estimate:
    """Percent by which the gates add to the bytes of the weights."""
    full, ours = (
        _number(evidence, "decode", tokens, method, protocol, "bytes", "weights") for method in ("full", "wg_kv")
    )
    return exact(100 * (ours / full - 1))


def fragmentation(evidence: Evidence, tokens: int, kind: str) -> Estimate:
    """Bytes of pages over those of the entries, or of buffers of full length over those of the full cache."""
    rows = evidence.of("profile_fragmentation")
    sizes = rows[rows["n_tokens"] == tokens].set_index("component")["value"]
    if sizes.empty:
        raise NoRows(f"fragmentation at {tokens} tokens")
    return exact(sizes[kind] / sizes["entries" if kind == "paged" else "full"])


def kernel_error(evidence: Evidence, kernel: str) -> Estimate:
    """Largest difference of a kernel from its reference, relative to the largest output, over the sizes checked."""
    rows = evidence.of("profile_checks")
    errors = rows.loc[rows["task"] == kernel, "value"]
    if errors.empty:
        raise NoRows(f"check of {kernel}")
    return exact(errors.max())


LATENCY_QUERIES = (
    speedup,
    slowdown,
    memory_saving,
    time_share,
    time_share_rise,
    time_growth,
    cache_share_of_memory,
    saved_in_attention,
    out_of_memory_from,
    longest_prefill,
    gate_parameters,
    fragmentation,
    kernel_error,
)
