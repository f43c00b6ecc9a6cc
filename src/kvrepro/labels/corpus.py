"""Labels of documents and of whole corpora: signals, utilities, gates and checks, and the files they are kept in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from kvrepro import tensorfile
from kvrepro.errors import InputError
from kvrepro.labels.checks import check
from kvrepro.labels.rollout import Sampling, rollout
from kvrepro.labels.utility import utility
from kvrepro.models.capture import Prefill, decoder_layers, group_gates, prefill
from kvrepro.models.chat import around_user_turn
from kvrepro.models.loading import LoadedModel
from kvrepro.models.tokens import sha256_tokens

KIND = "labels"
REMEDY = "run the workflow to make the labels"


@dataclass(frozen=True)
class LabelSettings:
    """How documents are labelled. ``check_entries`` keys a layer are deleted for the check; ``batch`` documents decode
    together; ``seed`` is that of the corpus, from which each document's own is derived."""

    sampling: Sampling
    check_entries: int
    batch: int
    seed: int

    def __post_init__(self):
        if min(self.check_entries, self.batch) < 1:
            raise InputError("labels: check_entries and batch must be at least 1.")

    @classmethod
    def from_config(cls, labels: Mapping[str, Any]) -> LabelSettings:
        """Settings from the section ``labels`` of a config; its other keys say which documents are labelled."""
        sampling = Sampling(**{f.name: labels[f.name] for f in fields(Sampling)})
        return cls(sampling, **{f.name: labels[f.name] for f in fields(cls) if f.name != "sampling"})


@dataclass
class Labels:
    """What is known of one document of ``n`` context tokens."""

    signals: torch.Tensor  #: [gdn_layers, n, gdn_heads, 3]: write gate, log-decay, write magnitude
    utility: torch.Tensor  #: [attention_layers, kv_heads, n] float32, Eq. 2, not normalised
    layer_gates: torch.Tensor | None  #: [attention_layers] float32, mean over KV heads of the group gates (§4.2)
    seed: int
    token_sha256: str
    checks: dict[str, float]

    @property
    def n(self) -> int:
        """Length of the context in tokens."""
        return self.utility.shape[-1]

    def targets(self) -> torch.Tensor:
        """Utilities divided by their maximum over the document, per layer and KV head (§4.1)."""
        return self.utility / self.utility.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def label_document(
    lm: LoadedModel, tokens: torch.Tensor, settings: LabelSettings, seed: int, name: str = "document"
) -> Labels:
    """Labels of one document, ``tokens`` ``[n]``; see :func:`label_documents`."""
    return label_documents(lm, [tokens], settings, [seed], [name])[0]


def label_documents(
    lm: LoadedModel,
    documents: Sequence[torch.Tensor],
    settings: LabelSettings,
    seeds: Sequence[int],
    names: Sequence[str],
) -> list[Labels]:
    """Labels of documents whose continuations decode as one batch.

    With a chat model a document stands in a user turn, after which the model's answer begins (Appendix B); the tokens
    of the template are prefilled but get no label. Raises InputError when the model has no GDN layers, a document is
    empty or too long, or a check fails.
    """
    g = lm.geometry
    if not g.gdn_layers:
        raise InputError(f"{lm.name} has no Gated DeltaNet layers, whose signals the labels pair with; use a hybrid.")
    texts = around_user_turn(lm.tokenizer) if lm.chat else ("", "")
    head, tail = (torch.tensor(lm.tokenizer.encode(x, add_special_tokens=False), dtype=torch.long) for x in texts)
    for tokens, name in zip(documents, names, strict=True):
        longest = g.max_positions - settings.sampling.rollout_tokens - len(head) - len(tail)
        if not 1 <= len(tokens) <= longest:
            raise InputError(f"{name} has {len(tokens)} tokens; {lm.name} can label 1 to {longest}, so cut it.")
    parents = [prefill(lm, torch.cat([head, tokens, tail]), query_window=1) for tokens in documents]
    found = rollout(lm, parents, settings.sampling, list(seeds), list(names))
    labelled = []
    for i, (parent, seed, name) in enumerate(zip(parents, seeds, names, strict=True)):
        utilities = _utilities(lm, parent, found[i].rows)
        checks = check(lm, parent, found[i], utilities, settings.check_entries, seed, name)
        context = slice(len(head), parent.n - len(tail))
        gates = group_gates(parent, context)
        labelled.append(
            Labels(
                signals=parent.signals[:, context].cpu(),
                utility=torch.stack([u.amax(0) for u in utilities])[..., context].cpu(),
                layer_gates=None if gates is None else gates.mean(1).cpu(),
                seed=seed,
                token_sha256=sha256_tokens(documents[i].tolist()),
                checks=checks,
            )
        )
    return labelled


@torch.inference_mode()
def _utilities(lm: LoadedModel, parent: Prefill, rows: list) -> list[torch.Tensor]:
    layers = decoder_layers(lm.model)
    return [
        utility(
            parent.keys[number],
            parent.values[number],
            rows[number],
            layers[layer].self_attn.o_proj.weight,
            layers[layer].self_attn.scaling,
        )
        for number, layer in enumerate(lm.geometry.attention_layers)
    ]


def document_seed(seed: int, corpus: str, document: int) -> int:
    """The seed of one document, different for every corpus and document."""
    return int(hashlib.sha256(f"{seed}/{corpus}/{document}".encode()).hexdigest()[:15], 16)


def label_corpus(
    lm: LoadedModel,
    corpus: str,
    documents: Sequence[torch.Tensor],
    settings: LabelSettings,
    path: str | Path,
) -> None:
    """Label all documents of a corpus and write them to ``path``, with a progress bar.

    ``documents`` are token ids ``[n]`` each. The file appears when all of them are labelled, so a killed run leaves the
    corpora that were finished. Raises InputError as :func:`label_documents`, and when there are no documents.
    """
    if not documents:
        raise InputError(f"corpus {corpus!r} has no documents to label; check its lengths and number in the config.")
    labelled: list[Labels] = []
    with tqdm(total=len(documents), desc=f"labels {corpus}", unit="doc") as bar:
        for first in range(0, len(documents), settings.batch):
            chunk = range(first, min(first + settings.batch, len(documents)))
            labelled += label_documents(
                lm,
                [documents[i] for i in chunk],
                settings,
                [document_seed(settings.seed, corpus, i) for i in chunk],
                [f"corpus {corpus}, document {i}" for i in chunk],
            )
            bar.update(len(chunk))
    save(path, lm, corpus, labelled, settings)


def save(path: str | Path, lm: LoadedModel, corpus: str, labelled: list[Labels], settings: LabelSettings) -> None:
    """Write a corpus' labels. Signals are kept in half precision (relative error 5e-4), the rest in float32."""
    tensors, records = {}, []
    for i, doc in enumerate(labelled):
        tensors[f"{i}/signals"] = doc.signals.half()
        tensors[f"{i}/utility"] = doc.utility
        if doc.layer_gates is not None:
            tensors[f"{i}/layer_gates"] = doc.layer_gates
        records.append({"n": doc.n, "seed": doc.seed, "token_sha256": doc.token_sha256, "checks": doc.checks})
    meta = {
        "kind": KIND,
        **lm.identity(),
        "corpus": corpus,
        "settings": asdict(settings),
        "documents": records,
    }
    tensorfile.write(path, tensors, meta)


class LabelledCorpus(Sequence[Labels]):
    """A corpus' labels in their file, read document by document.

    ``fingerprint`` and ``geometry`` are those of the model the labels must belong to; without them any model's file is
    accepted. InputError names the file when it is missing, truncated, corrupt or another model's.
    """

    def __init__(self, path: str | Path, fingerprint: str | None = None, geometry: dict[str, Any] | None = None):
        self._file = tensorfile.TensorFile(path, KIND, REMEDY)
        self.meta = self._file.meta
        if fingerprint is not None:
            self._file.belongs_to(fingerprint, geometry or self.meta["geometry"])

    @property
    def name(self) -> str:
        """The corpus."""
        return self.meta["corpus"]

    def __len__(self) -> int:
        return len(self.meta["documents"])

    def __getitem__(self, i: int) -> Labels:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        record = self.meta["documents"][i]
        doc = Labels(
            signals=self._file.read(f"{i}/signals").float(),
            utility=self._file.read(f"{i}/utility"),
            layer_gates=self._file.read(f"{i}/layer_gates") if self.meta["geometry"]["output_gate"] else None,
            seed=record["seed"],
            token_sha256=record["token_sha256"],
            checks=record["checks"],
        )
        if not (torch.isfinite(doc.signals).all() and torch.isfinite(doc.utility).all()):
            raise self._file.fault(f"holds values of document {i} that are not finite")
        return doc


def check_rows(corpus: LabelledCorpus, tier: str) -> list[dict[str, Any]]:
    """Tidy rows of every document's checks: experiment ``label_checks``, one metric a check."""
    return [
        {
            "paper": "gatesight",
            "experiment": "label_checks",
            "tier": tier,
            "model": corpus.meta["model"],
            "method": "rollout_utility",
            "options": "{}",
            "budget": None,
            "task": corpus.name,
            "item": i,
            "metric": metric,
            "value": value,
            "seed": corpus.meta["settings"]["seed"],
        }
        for i, record in enumerate(corpus.meta["documents"])
        for metric, value in record["checks"].items()
    ]
