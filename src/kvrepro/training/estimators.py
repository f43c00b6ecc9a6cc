"""Training the utility estimators and their controls on labelled corpora (GateSight §4.1, Appendices C and G)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from tqdm import tqdm

from kvrepro.errors import InputError
from kvrepro.estimators.features import columns, flat, widths
from kvrepro.estimators.mlp import Estimators, Heads
from kvrepro.labels.corpus import LabelledCorpus, document_seed
from kvrepro.models.geometry import Geometry

CHUNK = 32768  #: samples whose statistics are taken at a time


@dataclass(frozen=True)
class Recipe:
    """How estimators are trained: the section ``estimators`` of a config, after §4.1 and Appendix G.

    Three things the paper does not say are chosen here: the batch size, the ReLU, and ridge's penalty, which is
    ``ridge`` times the number of samples on standardised features.
    """

    window: int
    hidden: int
    epochs: int
    positions: int
    learning_rate: float
    weight_decay: float
    clip: float
    batch: int
    ridge: float
    seed: int

    def __post_init__(self):
        if min(self.hidden, self.epochs, self.positions, self.batch) < 1 or self.window < 0:
            raise InputError("estimators: hidden, epochs, positions and batch must be at least 1, window at least 0.")
        if min(self.learning_rate, self.clip, self.ridge) <= 0 or self.weight_decay < 0:
            raise InputError("estimators: learning_rate, clip and ridge must be above 0, weight_decay at least 0.")


@dataclass
class Samples:
    """Random positions of all documents, ``N`` in all."""

    matrix: torch.Tensor  #: [N, columns of the flat matrix] float32
    targets: torch.Tensor  #: [N, attention_layers, kv_heads], max-normalised utility
    corpus: torch.Tensor  #: [N] int64, index into ``corpora``
    corpora: list[str]

    def to(self, device: str) -> Samples:
        """The same on another device."""
        return Samples(self.matrix.to(device), self.targets.to(device), self.corpus.to(device), self.corpora)

    def without(self, corpus: str | None) -> torch.Tensor:
        """Indices of the samples of every other corpus; of all when ``corpus`` is None."""
        if corpus is None:
            return torch.arange(len(self.corpus), device=self.corpus.device)
        return (self.corpus != self.corpora.index(corpus)).nonzero()[:, 0]


def sample_positions(labelled: Sequence[LabelledCorpus], recipe: Recipe) -> Samples:
    """``positions`` random entries of every document (all of a shorter one), the same whatever else is read.

    Raises InputError when there are no corpora, or they are of different models.
    """
    if not labelled:
        raise InputError("there are no labelled corpora; name at least one in the config.")
    matrix, targets, corpus = [], [], []
    for number, documents in enumerate(labelled):
        if documents.meta["fingerprint"] != labelled[0].meta["fingerprint"]:
            raise InputError(f"corpora {labelled[0].name} and {documents.name} are labelled with different models.")
        for i, doc in enumerate(documents):
            generator = torch.Generator().manual_seed(document_seed(recipe.seed, f"positions {documents.name}", i))
            chosen = torch.randperm(doc.n, generator=generator)[: recipe.positions]
            matrix.append(flat(doc.signals)[chosen])
            targets.append(doc.targets()[..., chosen].permute(2, 0, 1))
            corpus += [number] * len(chosen)
    return Samples(torch.cat(matrix), torch.cat(targets), torch.tensor(corpus), [c.name for c in labelled])


def _statistics(samples: Samples, rows: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the chosen columns over the training rows; a constant column gets deviation 1."""
    mean = sum(samples.matrix[part].double().sum(0) for part in rows.split(CHUNK)) / len(rows)
    variance = sum((samples.matrix[part] - mean).square().sum(0) for part in rows.split(CHUNK)) / len(rows)
    std = torch.where(variance > 1e-24, variance.sqrt(), 1.0)
    return mean.float()[chosen], std.float()[chosen]


def initial(geometry: Geometry, recipe: Recipe) -> Heads:
    """Untrained networks, each from a seed of its own, initialised as torch's linear layers; padding is zero."""
    chosen, width = columns(geometry, recipe.window), widths(geometry, recipe.window)
    a, k, h = len(width), geometry.kv_heads, recipe.hidden
    w1, b1, w2, b2 = (
        torch.zeros(a, chosen.shape[1], k, h),
        torch.zeros(a, k, h),
        torch.zeros(a, k, h),
        torch.zeros(a, k),
    )
    for layer in range(a):
        for head in range(k):
            g = torch.Generator().manual_seed(document_seed(recipe.seed, f"layer {layer}", head))
            first, second = width[layer] ** -0.5, h**-0.5
            w1[layer, : width[layer], head].uniform_(-first, first, generator=g)
            b1[layer, head].uniform_(-first, first, generator=g)
            w2[layer, head].uniform_(-second, second, generator=g)
            b2[layer, head].uniform_(-second, second, generator=g)
    return Heads(chosen, torch.zeros(a, chosen.shape[1]), torch.ones(a, chosen.shape[1]), w1, b1, w2, b2)


def train_mlp(
    samples: Samples, geometry: Geometry, recipe: Recipe, leave_out: str | None = None, progress: str = ""
) -> Heads:
    """Train all networks of a model in one batched pass, on every corpus but ``leave_out``.

    Nothing is shared between networks but the order of the samples: the loss is summed over them, each has its own
    gradient norm to clip, and AdamW works element by element, so the result is that of training each alone.
    """
    rows = samples.without(leave_out)
    heads = initial(geometry, recipe).to(rows.device)
    heads.mean, heads.std = _statistics(samples, rows, heads.columns)
    weights = [heads.w1, heads.b1, heads.w2, heads.b2]
    for w in weights:
        w.requires_grad_(True)
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    order = torch.Generator().manual_seed(recipe.seed)
    for _ in tqdm(range(recipe.epochs), desc=progress, unit="epoch", disable=not progress, leave=False):
        for batch in rows[torch.randperm(len(rows), generator=order).to(rows.device)].split(recipe.batch):
            logits = heads.logits(heads.standardised(samples.matrix[batch]))
            targets = samples.targets[batch].permute(1, 2, 0)
            loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(-1).sum()
            optimizer.zero_grad()
            loss.backward()
            _clip(weights, recipe.clip)
            optimizer.step()
    for w in weights:
        w.requires_grad_(False)
        if not torch.isfinite(w).all():
            raise InputError("estimators: training diverged; lower learning_rate.")
    return heads


def _clip(weights: list[torch.Tensor], limit: float) -> None:
    """Scale each network's gradient to at most ``limit``. Dimensions: w1 [A, F, K, H], the others [A, K, ...]."""
    w1, b1, w2, b2 = (w.grad for w in weights)
    squared = w1.square().sum((1, 3)) + b1.square().sum(-1) + w2.square().sum(-1) + b2.square()
    scale = (limit / (squared.sqrt() + 1e-6)).clamp(max=1)  # [A, K]
    w1.mul_(scale[:, None, :, None])
    b1.mul_(scale[..., None])
    w2.mul_(scale[..., None])
    b2.mul_(scale)


def fit_ridge(samples: Samples, geometry: Geometry, recipe: Recipe, leave_out: str | None = None) -> Heads:
    """Ridge regression on the same samples, features and targets, in closed form and float64; the intercept is free."""
    rows = samples.without(leave_out)
    chosen = columns(geometry, recipe.window).to(rows.device)
    mean, std = _statistics(samples, rows, chosen)
    heads = Heads(chosen, mean, std, None, None, w2=None, b2=samples.targets[rows].double().mean(0).float())
    gram, moment = 0.0, 0.0
    for part in rows.split(CHUNK):
        x = heads.standardised(samples.matrix[part]).double()  # [A, n, F]
        y = (samples.targets[part] - heads.b2).double().transpose(0, 1)  # [A, n, K]
        gram, moment = gram + x.mT @ x, moment + x.mT @ y
    penalty = recipe.ridge * len(rows) * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    heads.w2 = torch.linalg.solve(gram + penalty, moment).mT.float()
    return heads


#: The learned predictors of Table 5 by name.
LEARNED: dict[str, Callable[[Samples, Geometry, Recipe, str | None], Heads]] = {
    "age_mlp": lambda samples, geometry, recipe, out: train_mlp(samples, geometry, _ages_only(recipe), out),
    "ridge": fit_ridge,
    "mlp": train_mlp,
}


def _ages_only(recipe: Recipe) -> Recipe:
    return replace(recipe, window=0)


def train(labelled: Sequence[LabelledCorpus], geometry: Geometry, recipe: Recipe, device: str = "cpu") -> Estimators:
    """The estimators to use: trained on every corpus, with the layers' mean gates over them (§4.2)."""
    samples = sample_positions(labelled, recipe).to(device)
    began = time.monotonic()
    heads = train_mlp(samples, geometry, recipe, progress="estimators").to("cpu")
    seconds = time.monotonic() - began
    meta = labelled[0].meta
    return Estimators(
        heads=heads,
        layer_gates=mean_gates(labelled),
        geometry=geometry,
        fingerprint=meta["fingerprint"],
        model=meta["model"],
        corpora=[c.name for c in labelled],
        recipe=asdict(recipe),
        seconds=seconds,
    )


def mean_gates(labelled: Sequence[LabelledCorpus]) -> torch.Tensor | None:
    """Mean output gate of each attention layer over all tokens of all documents, ``[attention_layers]``."""
    documents = [doc for corpus in labelled for doc in corpus]
    if documents[0].layer_gates is None:
        return None
    weights = torch.tensor([float(doc.n) for doc in documents])
    return (torch.stack([doc.layer_gates for doc in documents]) * weights[:, None]).sum(0) / weights.sum()


def held_out(
    labelled: Sequence[LabelledCorpus],
    geometry: Geometry,
    recipe: Recipe,
    device: str = "cpu",
    names: Sequence[str] = tuple(LEARNED),
) -> dict[str, dict[str, Heads]]:
    """Per corpus the learned predictors ``names`` trained on all the others (Appendix C): corpus -> name -> predictor.

    Raises InputError with fewer than two corpora.
    """
    if len(labelled) < 2:
        raise InputError("leave-one-corpus-out needs at least two labelled corpora; name more in the config.")
    samples = sample_positions(labelled, recipe).to(device)
    found: dict[str, dict[str, Heads]] = {}
    for corpus in tqdm(samples.corpora, desc="leave one corpus out", unit="corpus"):
        found[corpus] = {name: LEARNED[name](samples, geometry, recipe, corpus).to("cpu") for name in names}
    return found
