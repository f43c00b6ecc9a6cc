"""Labels of longer documents, of all label corpora in turn, by one model."""

import torch

from kvrepro.labels.corpus import LabelSettings, label_corpus
from kvrepro.labels.documents import longer
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    given, tokens, number = snakemake.params.settings, *(snakemake.params.set[k] for k in ("tokens", "documents"))
    lm = load(snakemake.wildcards.model, snakemake.config["device"])
    found = longer(snakemake.params.corpora, lm.tokenizer, tokens, number, given["seed"])
    texts = [torch.tensor(ids) for ids in found]
    label_corpus(lm, snakemake.wildcards.set, texts, LabelSettings.from_config(given), snakemake.output[0])
