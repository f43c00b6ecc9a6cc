"""KVzip: keep what the model attends to when it repeats its context from its own cache (Kim et al., 2025)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import DynamicCache

from kvrepro.cache.recurrent import repeated
from kvrepro.errors import InputError
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.attention import observing
from kvrepro.models.capture import Prefill
from kvrepro.models.chat import around_user_turn
from kvrepro.models.loading import LoadedModel

PROMPTS = Path(__file__).with_name("kvzip_prompts.yaml")
SOFTMAX_OVER = ("cache", "chunk")
ELEMENTS = {"cpu": 2**20, "cuda": 2**27}  #: attention weights held at a time: a core's cache, enough to fill a GPU


@dataclass
class KVzip(Eviction):
    """Score = largest attention weight that an entry receives while its part of the context is repeated.

    The context after the protected prefix is repeated in parts of ``chunk`` tokens. Each is fed after a prompt that
    asks for it, at positions n, n + 1, ..., on top of the whole uncompressed cache; what is fed is not written to the
    cache, so every part starts from the state after the context, in a hybrid with its GDN states. The maximum is over
    the rows that are fed, prompt included, and the GQA group. The best entries of the whole model are kept, so that
    counts differ between layers and heads (GateSight Appendix G). Parts are shorter where the model's limit leaves no
    room for ``chunk`` tokens after the context.

    ``softmax_over``: ``cache``, the default, normalises over everything a row sees, which gives the weights that the
    model itself uses when it repeats the context: the "reconstruction attention" of GateSight Appendix G. ``chunk``
    normalises over the protected prefix, the part being repeated and what is fed, as the published code does. Under a
    sparse attention either is over what the row reads of these, and an entry that no row reads scores zero.
    """

    name = "kvzip"
    allocation = "global"
    chunk: int = 2000
    softmax_over: str = "cache"

    def __post_init__(self):
        if self.chunk < 1:
            raise InputError("kvzip: chunk must be at least 1 token.")
        if self.softmax_over not in SOFTMAX_OVER:
            raise InputError(f"kvzip.softmax_over is {self.softmax_over!r}; allowed: {', '.join(SOFTMAX_OVER)}.")

    def prepare(self, lm: LoadedModel) -> None:
        """Keep the model, which scoring runs a second time, and the tokens of the prompts."""
        prompts = yaml.safe_load(PROMPTS.read_text())

        def ids(text: str) -> torch.Tensor:
            return torch.tensor(lm.tokenizer.encode(text, add_special_tokens=False), dtype=torch.long)

        self._lm, self._reminder = lm, prompts["reminder"]
        self._first, self._later = ids(prompts["first"]), ids(prompts["later"])
        self._close = ids(around_user_turn(lm.tokenizer)[1] if lm.chat else "")

    @torch.no_grad()
    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """Largest attention received, in [0, 1]; zero in the protected prefix.

        Raises InputError when the model's limit leaves no room for a repetition.
        """
        g, lm, n = prefill.geometry, self._lm, prefill.n
        number = {layer: i for i, layer in enumerate(g.attention_layers)}
        scores = [torch.zeros(keys.shape[:2], device=keys.device) for keys in prefill.keys]
        for part, fed in self._parts(prefill.tokens, prefill.protected, g.max_positions):

            def read(module, query, key, value, output, part=part):
                layer = number[module.layer_idx]
                entries, columns = slice(None), part
                if self.softmax_over == "chunk":
                    every = torch.arange(key.shape[2], device=key.device)
                    entries = torch.cat([every[: prefill.protected], every[part], every[n:]])
                    columns = slice(prefill.protected, prefill.protected + part.stop - part.start)

                def unread(rows: slice) -> torch.Tensor:
                    return ~module.reads.mask(rows, key.shape[2])[0, 0][:, entries]

                hidden = unread if g.index else None
                received = attention_received(query[0], key[0, :, entries], columns, module.scaling, hidden=hidden)
                scores[layer][:, part] = received

            with observing(read):
                lm.model(
                    input_ids=fed[None].to(lm.device),
                    position_ids=torch.arange(n, n + len(fed), device=lm.device)[None],
                    past_key_values=_unwritten(lm, prefill),
                    use_cache=True,
                    logits_to_keep=1,
                )
        return scores

    def _parts(self, tokens: torch.Tensor, protected: int, limit: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """Each part of the context and the tokens that are fed to have it repeated, at positions below ``limit``."""
        around = max(len(self._first), len(self._later) + self._reminder) + len(self._close)
        size = min(self.chunk, limit - len(tokens) - around)
        if size < 1:
            raise InputError(
                f"kvzip: after {len(tokens)} tokens the {limit} positions of {self._lm.name} leave no room to repeat "
                "them; shorten the context."
            )
        for start in range(protected, len(tokens), size):
            part = slice(start, min(start + size, len(tokens)))
            prompt = [self._first]
            if start > protected:
                prompt = [self._later, tokens[max(protected, start - self._reminder) : start].cpu()]
            yield part, torch.cat([*prompt, self._close, tokens[part].cpu()])


def attention_received(
    query: torch.Tensor,
    key: torch.Tensor,
    columns: slice,
    scaling: float,
    elements: int | None = None,
    hidden: Callable[[slice], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Largest softmax weight that each entry of ``columns`` gets from a row of its GQA group: ``[kv_heads, columns]``.

    query ``[query_heads, t, head_dim]``; key ``[kv_heads, entries, head_dim]``, whose last t entries are the rows' own,
    so that row i sees all but the t - 1 - i last. Columns lie before these. float32; ``elements`` bounds how many
    weights are held at a time, of one KV head's rows. ``hidden(rows)`` gives further entries that some rows do not see,
    ``[rows, entries]`` bool.
    """
    kv_heads, entries, _ = key.shape
    group, t = query.shape[0] // kv_heads, query.shape[1]
    rows = max(1, (elements or ELEMENTS[key.device.type]) // (group * entries))
    found = []
    for q, k in zip(query.unflatten(0, (kv_heads, group)), key, strict=True):
        k, best = k.float().T, None
        for first in range(0, t, rows):
            block = q[:, first : first + rows].float() * scaling
            last = block.shape[1]
            seen = entries - t + first + last  # what the block's last row sees
            logits = block @ k[:, :seen]
            late = torch.ones(last, last, dtype=torch.bool, device=k.device).triu(1)
            logits[..., seen - last :].masked_fill_(late, float("-inf"))
            if hidden is not None:
                logits.masked_fill_(hidden(slice(first, first + last))[:, :seen], float("-inf"))
            lse = logits.logsumexp(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)  # a row may see nothing
            received = (logits[..., columns] - lse).amax((0, 1))
            best = received if best is None else torch.maximum(best, received)
        found.append(best.exp())
    return torch.stack(found)


def _added(layer: Any, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any):
    """In the place of a cache layer's update: its entries followed by new ones, which are not stored."""
    return torch.cat([layer.keys, key_states], -2), torch.cat([layer.values, value_states], -2)


def _unwritten(lm: LoadedModel, prefill: Prefill) -> DynamicCache:
    """The cache after the context, which a forward pass reads and does not change; only GDN states are copied."""
    cache, g = DynamicCache(config=lm.model.config), prefill.geometry
    for index in g.attention_layers:
        layer = copy.copy(prefill.cache.layers[index])
        layer.update = partial(_added, layer)
        cache.layers[index] = layer
    for index in g.gdn_layers:
        cache.layers[index] = repeated([prefill.cache.layers[index]], 1)
    return cache
