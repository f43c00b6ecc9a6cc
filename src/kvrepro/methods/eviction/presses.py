"""Any scoring press of the package kvpress as an eviction method, by the name ``kvpress:<class>``.

kvpress (https://github.com/NVIDIA/kvpress, Apache-2.0) is an optional extra. Only a press's ``score`` is used: budget,
protected prefix, compaction and checks are those of this suite, so that a press is compared with everything else on the
same terms. Its options are the press's own, without ``compression_ratio``, whose place the kept fraction takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvrepro.errors import InputError, unknown
from kvrepro.methods.eviction.base import Eviction
from kvrepro.models.capture import Prefill, decoder, decoder_layers
from kvrepro.models.loading import LoadedModel

RATIO = "compression_ratio"  #: the share that kvpress removes
MISSING = (
    "the package kvpress is missing; install the extra kvpress, or kvpress alone beside newer versions of transformers "
    "and pandas than it allows"
)


@dataclasses.dataclass
class Press(Eviction):
    """The scores of a press, under a flat budget, as presses that score prune every head alike.

    The press reads what goes into the attention layers, so the context is run through the model a second time. It sees
    no attention weights: a press that needs them is refused.
    """

    prefix: ClassVar[str] = "kvpress"
    press: ClassVar[type]

    @classmethod
    def named(cls, name: str, where: str) -> type[Press]:
        """The method of a press. InputError, naming the key ``where``, for one that is unknown or gives no scores."""
        return _method(name, where)

    def __post_init__(self):
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        try:
            self._press = self.press(**options)
        except (AssertionError, ValueError, TypeError) as error:
            raise InputError(f"{self.name}: {error}; change its options.") from error

    def prepare(self, lm: LoadedModel) -> None:
        """Let the press take what it needs from the model, which is kept for scoring."""
        self._lm = lm
        self._press.post_init_from_model(lm.model)

    @torch.no_grad()
    def score(self, prefill: Prefill) -> list[torch.Tensor]:
        """The press's scores per attention layer, ``[kv_heads, n]``; InputError where it cannot read the model."""
        lm, found = self._lm, {}
        number = {layer: i for i, layer in enumerate(prefill.geometry.attention_layers)}

        def before(module: Any, args: tuple, given: dict[str, Any]) -> None:
            keys, values = (x[number[module.layer_idx]][None] for x in (prefill.keys, prefill.values))
            hidden = given["hidden_states"] if "hidden_states" in given else args[0]
            found[module.layer_idx] = self._press.score(module, hidden, keys, values, None, given)[0].float()

        with _watched(lm, number, before):
            try:
                lm.model(input_ids=prefill.tokens[None].to(lm.device), use_cache=False, logits_to_keep=1)
            except (AssertionError, AttributeError, KeyError, RuntimeError, NotImplementedError, TypeError) as error:
                # foreign code that was written for other architectures fails in any of these ways
                reason = str(error).strip().split("\n")[0] or type(error).__name__
                raise InputError(f"{self.name} cannot score {lm.name} ({reason}); take another press.") from error
        return [found[layer] for layer in number]


@contextmanager
def _watched(lm: LoadedModel, layers: Any, before: Any) -> Iterator[None]:
    """Call ``before`` ahead of each attention layer, which meanwhile has the model's rotary embedding, as presses
    expect."""
    modules, handles = [decoder_layers(lm.model)[layer].self_attn for layer in layers], []
    added = [module for module in modules if not hasattr(module, "rotary_emb")]
    try:
        for module in added:
            module.rotary_emb = decoder(lm.model).rotary_emb
        handles += [module.register_forward_pre_hook(before, with_kwargs=True) for module in modules]
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in added:
            del module.rotary_emb


def _package() -> ModuleType:
    """kvpress, imported without what it does to transformers: it wraps the attention of every model, which presses that
    only score do not need, so the functions are put back."""
    functions = dict(ALL_ATTENTION_FUNCTIONS.items())
    try:
        return import_module("kvpress")
    finally:
        for name, function in functions.items():
            ALL_ATTENTION_FUNCTIONS[name] = function


@cache
def _method(name: str, where: str) -> type[Press]:
    try:
        package = _package()
    except ImportError as error:
        raise InputError(f"{where}: {Press.prefix}:{name}: {MISSING} ({error}).") from error
    scoring = package.ScorerPress
    presses = {key: value for key, value in vars(package).items() if _scores(value, scoring)}
    if name not in presses:
        raise unknown("press that scores entries", name, presses, where)
    options = [
        (f.name, f.type, dataclasses.field(default=f.default, default_factory=f.default_factory))
        for f in dataclasses.fields(presses[name])
        if f.init and f.name != RATIO
    ]
    told = {"name": f"{Press.prefix}:{name}", "press": presses[name], "__module__": __name__}
    return dataclasses.make_dataclass(name, options, bases=(Press,), namespace=told)


def _scores(found: Any, scoring: type) -> bool:
    return isinstance(found, type) and issubclass(found, scoring) and found.score is not scoring.score
