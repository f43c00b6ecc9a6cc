"""Labels of longer documents, of all label corpora in turn, by one model."""

import math
from itertools import chain, islice

import torch

from kvrepro.labels.corpus import LabelSettings, label_corpus
from kvrepro.labels.documents import documents
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    given, tokens, number = snakemake.params.settings, *(snakemake.params.set[k] for k in ("tokens", "documents"))
    corpora, lm = snakemake.params.corpora, load(snakemake.wildcards.model, snakemake.config["device"])
    each = math.ceil(number / len(corpora))
    pieces = [documents(entry, lm.tokenizer, (tokens, tokens), each, given["seed"]) for entry in corpora]
    texts = [torch.tensor(ids) for ids in islice(chain.from_iterable(zip(*pieces, strict=True)), number)]
    label_corpus(lm, snakemake.wildcards.set, texts, LabelSettings.from_config(given), snakemake.output[0])
