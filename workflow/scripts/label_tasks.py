"""Labels of the contexts of RULER tasks by one model, a file a task."""

import torch

from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.registry import benchmark
from kvrepro.labels.corpus import LabelSettings, label_corpus
from kvrepro.models import registry
from kvrepro.models.loading import load
from kvrepro.script import job

with job(snakemake):
    params, model = snakemake.params, snakemake.wildcards.model
    lm, lab = load(model, snakemake.config["device"]), registry.entry(model).get("lab", False)
    tasks = benchmark("ruler").generate(params.ruler, lm.tokenizer, params.seed, lm.chat, lab)
    for task, examples, path in zip(params.ruler["tasks"], tasks, snakemake.output, strict=True):
        documents = [torch.tensor(render(example, lm.tokenizer).prefix) for example in examples]
        label_corpus(lm, task, documents, LabelSettings.from_config(params.settings), path)
