"""Labels of one corpus by one model."""

import torch

from kvrepro.data.corpora import cut
from kvrepro.labels.corpus import Settings, label_corpus
from kvrepro.labels.rollout import Sampling
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    given = snakemake.params.settings
    lm = load(snakemake.wildcards.model, snakemake.config["device"])
    documents = cut(
        snakemake.params.entry, lm.tokenizer, tuple(given["tokens"]), given["documents"], given["seed"], join=True
    )
    sampling = Sampling(
        given["rollouts"], given["rollout_tokens"], given["temperature"], given["top_p"], given["top_k"]
    )
    label_corpus(
        lm,
        snakemake.wildcards.corpus,
        [torch.tensor(ids) for ids in documents],
        Settings(sampling=sampling, seed=given["seed"]),
        snakemake.output[0],
    )
