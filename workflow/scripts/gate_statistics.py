"""Mean output gates of one model over calibration documents of all label corpora."""

import torch

from kvrepro.analysis.gate_statistics import measure
from kvrepro.labels.documents import documents
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    params, lm = snakemake.params, load(snakemake.wildcards.model, snakemake.config["device"])
    size = tuple(params.lengths), params.documents, params.seed
    texts = [torch.tensor(ids) for entry in params.corpora for ids in documents(entry, lm.tokenizer, *size)]
    measure(lm, texts).save(snakemake.output[0], lm)
