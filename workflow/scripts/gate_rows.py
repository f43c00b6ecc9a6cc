"""What the output gate ranks, within a head and over heads, on held-out documents of all label corpora."""

import pandas as pd
import torch

from kvrepro.analysis import gate_statistics
from kvrepro.analysis.closing import closing_rows
from kvrepro.analysis.gated_scores import ranking_rows
from kvrepro.labels.documents import documents, name
from kvrepro.models.loading import load
from kvrepro.results import checksums, write_rows
from kvrepro.script import job

with job(snakemake) as run:
    params, device, tier = snakemake.params, snakemake.config["device"], snakemake.config["tier"]
    lm, settings = load(snakemake.wildcards.model, device), params.settings
    size = tuple(params.lengths), settings["documents"], settings["seed"]
    texts = {
        name(entry): [torch.tensor(ids) for ids in documents(entry, lm.tokenizer, *size, split="heldout")]
        for entry in params.corpora
    }
    gates = gate_statistics.load(snakemake.input.gates[0], lm).query_heads
    parts = [
        ranking_rows(lm, texts, settings["rows"], tier, settings["seed"]),
        closing_rows(lm, texts, gates, settings["share"], settings["draws"], tier, settings["seed"]),
    ]
    rows = pd.concat(parts, ignore_index=True)
    inputs = checksums(snakemake.input.gates)
    write_rows(rows, snakemake.output.rows, run.provenance(device, weights=lm.fingerprint, inputs=inputs))
