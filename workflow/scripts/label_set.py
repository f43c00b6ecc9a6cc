"""Labels of longer documents, of all label corpora in turn, by one model."""

import math
from itertools import chain, islice

import torch

from kvrepro.data.corpora import cut
from kvrepro.labels.corpus import LabelSettings, label_corpus
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    given, tokens, number = snakemake.params.settings, *(snakemake.params.set[k] for k in ("tokens", "documents"))
    corpora, lm = snakemake.params.corpora, load(snakemake.wildcards.model, snakemake.config["device"])
    each = math.ceil(number / len(corpora))
    pieces = [cut(entry, lm.tokenizer, (tokens, tokens), each, given["seed"], join=True) for entry in corpora]
    documents = [torch.tensor(ids) for ids in islice(chain.from_iterable(zip(*pieces, strict=True)), number)]
    label_corpus(lm, snakemake.wildcards.set, documents, LabelSettings.from_config(given), snakemake.output[0])
