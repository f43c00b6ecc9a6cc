"""Labels of one corpus by one model."""

import torch

from kvrepro.labels.corpus import LabelSettings, label_corpus
from kvrepro.labels.documents import documents
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    given = snakemake.params.settings
    lm = load(snakemake.wildcards.model, snakemake.config["device"])
    size = tuple(given["tokens"]), given["documents"], given["seed"]
    label_corpus(
        lm,
        snakemake.wildcards.corpus,
        [torch.tensor(ids) for ids in documents(snakemake.params.entry, lm.tokenizer, *size)],
        LabelSettings.from_config(given),
        snakemake.output[0],
    )
