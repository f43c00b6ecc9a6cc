"""Labels of one corpus by one model."""

import torch

from kvrepro.data.corpora import cut
from kvrepro.labels.corpus import LabelSettings, label_corpus
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    given = snakemake.params.settings
    lm = load(snakemake.wildcards.model, snakemake.config["device"])
    documents = cut(
        snakemake.params.entry, lm.tokenizer, tuple(given["tokens"]), given["documents"], given["seed"], join=True
    )
    label_corpus(
        lm,
        snakemake.wildcards.corpus,
        [torch.tensor(ids) for ids in documents],
        LabelSettings.from_config(given),
        snakemake.output[0],
    )
