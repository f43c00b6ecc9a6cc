"""Query statistics of one model over documents of all label corpora in turn."""

import math
from itertools import chain

import torch

from kvrepro.labels.documents import documents
from kvrepro.labels.query_statistics import calibrate
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    settings, corpora, lengths = snakemake.params.settings, snakemake.params.corpora, tuple(snakemake.params.lengths)
    lm = load(snakemake.wildcards.model, snakemake.config["device"])
    each = math.ceil(settings["tokens"] / lengths[0] / len(corpora))
    pieces = [documents(entry, lm.tokenizer, lengths, each, settings["seed"]) for entry in corpora]
    texts = [torch.tensor(ids) for ids in chain.from_iterable(zip(*pieces, strict=True))]
    calibrate(lm, texts, settings["tokens"]).save(snakemake.output[0], lm, settings["tokens"])
