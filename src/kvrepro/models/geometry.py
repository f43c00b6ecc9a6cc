"""The shape of a model, read from its transformers config, so that no other module looks into configs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvrepro.errors import InputError

INDEXED = "indexed_attention"
ATTENTION_TYPES = {"full_attention", "attention", INDEXED}
RECURRENT_TYPES = {"linear_attention"}


@dataclass(frozen=True)
class BlockIndex:
    """Qwen Sparse Attention: a query reads the blocks whose pooled index keys score best (GateSight Appendix H)."""

    block: int  #: consecutive entries that one index key stands for
    budget: int  #: most entries of complete blocks that a query reads
    heads: int  #: heads of the index queries; there is one head of index keys
    head_dim: int


@dataclass(frozen=True)
class Geometry:
    """Layers, heads and widths of a decoder; layer numbers count from zero over all layers."""

    model_type: str
    layers: int
    attention_layers: tuple[int, ...]
    gdn_layers: tuple[int, ...]
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    gdn_heads: int
    gdn_head_dim: int
    hidden: int
    vocab: int
    output_gate: bool
    qk_norm: bool
    max_positions: int
    index: BlockIndex | None = None  #: None where attention reads all that is held

    @property
    def block(self) -> int:
        """What a layer keeps comes in multiples of this."""
        return self.index.block if self.index else 1

    @property
    def lists(self) -> int:
        """Lists of kept entries of a layer: one per KV head, or a single one where an index serves all heads."""
        return 1 if self.index else self.kv_heads

    @property
    def group(self) -> int:
        """Query heads per KV head (the GQA group)."""
        return self.query_heads // self.kv_heads

    @property
    def cache_rows(self) -> int:
        """Per-head caches in the whole model: attention layers x KV heads."""
        return len(self.attention_layers) * self.kv_heads

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for metadata of saved artefacts; what a model does not have is left out."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Geometry:
        """The inverse of :meth:`as_dict`."""
        index = {"index": BlockIndex(**values["index"])} if "index" in values else {}
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()} | index)


def geometry(config: Any) -> Geometry:
    """Geometry of a transformers config (Llama, Qwen3, Qwen3.5 and Qwen4-exp classes; multimodal ones by their text
    part). Raises InputError when a layer is of a kind this suite does not know, or lacks its index."""
    c = config.get_text_config()
    kinds = list(getattr(c, "layer_types", None) or ["full_attention"] * c.num_hidden_layers)
    strange = set(kinds) - ATTENTION_TYPES - RECURRENT_TYPES
    if strange:
        raise InputError(
            f"model type {c.model_type!r} has layers of kind {', '.join(sorted(strange))}; "
            f"use a model whose layers are {', '.join(sorted(ATTENTION_TYPES | RECURRENT_TYPES))}."
        )
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    rope = getattr(c, "rope_parameters", None) or {}
    share = rope.get("partial_rotary_factor", getattr(c, "partial_rotary_factor", 1.0))
    hybrid = any(k in RECURRENT_TYPES for k in kinds)
    return Geometry(
        model_type=c.model_type,
        layers=c.num_hidden_layers,
        attention_layers=tuple(i for i, k in enumerate(kinds) if k in ATTENTION_TYPES),
        gdn_layers=tuple(i for i, k in enumerate(kinds) if k in RECURRENT_TYPES),
        query_heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rotary_dim=int(head_dim * share),
        gdn_heads=c.linear_num_value_heads if hybrid else 0,
        gdn_head_dim=c.linear_value_head_dim if hybrid else 0,
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        output_gate=hybrid,
        qk_norm=c.model_type.startswith("qwen"),
        max_positions=c.max_position_embeddings,
        index=_index(c) if INDEXED in kinds else None,
    )


def _index(c: Any) -> BlockIndex:
    fields = [getattr(c, f"indexer_{name}", None) for name in ("compress_ratio", "budget", "n_heads", "head_dim")]
    if None in fields:
        raise InputError(
            f"model type {c.model_type!r} has layers of kind {INDEXED} without indexer_compress_ratio, indexer_budget, "
            "indexer_n_heads and indexer_head_dim; complete its config, or use a model of the Qwen4-exp class."
        )
    return BlockIndex(*fields)
