"""Patterns of attention in code, and what each head of one model admits of two kinds of contexts."""

import pandas as pd
import torch

from kvrepro.analysis.gate_identities import identity_rows
from kvrepro.analysis.growth import growth_rows, primitives
from kvrepro.analysis.head_sizes import head_size_rows
from kvrepro.analysis.token_utility import token_utility_rows
from kvrepro.benchmarks.prompts import read_contexts
from kvrepro.data.corpora import cut
from kvrepro.data.sources import source
from kvrepro.models.gate import load_gates
from kvrepro.models.loading import load
from kvrepro.results import checksums, write_rows
from kvrepro.script import job

with job(snakemake) as run:
    settings, device, tier = snakemake.params.settings, snakemake.config["device"], snakemake.config["tier"]
    lm, seed, size = load(snakemake.wildcards.model, device), settings["seed"], (settings["tokens"], settings["tokens"])
    gates = load_gates(snakemake.input.gates, lm, settings["trade_off"])

    def documents(corpus, number):
        return [torch.tensor(ids) for ids in cut(corpus, lm.tokenizer, size, number, seed, "heldout", join=True)]

    def contexts(name, said):
        if "corpus" in said:
            return documents(said["corpus"], settings["items"])
        return [torch.tensor(x) for x in read_contexts(getattr(snakemake.input, f"of_{name}"), lm, settings["items"])]

    kinds = {name: contexts(name, said) for name, said in settings["contexts"].items()}
    code, corpus = documents(settings["code"], settings["documents"]), source(settings["code"]).name
    parts = [
        token_utility_rows(lm, code, gates.window, corpus, tier, seed),
        head_size_rows(lm, gates, kinds, settings["threshold"], tier, seed),
        identity_rows(lm, gates, code, settings["threshold"], corpus, tier, seed),
        growth_rows(lm, code, primitives(lm, settings, snakemake.input.gates), corpus, tier, seed),
    ]
    about = {"weights": lm.fingerprint, "inputs": checksums(f for k, f in snakemake.input.items() if k != "model")}
    write_rows(pd.concat(parts, ignore_index=True), snakemake.output.rows, run.provenance(device, **about))
