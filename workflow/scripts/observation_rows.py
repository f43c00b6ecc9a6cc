"""Rows of GateSight's observations on one model: dynamics, deciles, single heads, longer documents, windows, shape."""

from pathlib import Path

import pandas as pd

from kvrepro.analysis.cells import cell_rows, decile_rows
from kvrepro.analysis.dynamics import dynamics_rows, static_rows
from kvrepro.analysis.lengths import length_rows
from kvrepro.analysis.memory import slow_heads
from kvrepro.analysis.shape import shape_rows
from kvrepro.analysis.windows import window_rows
from kvrepro.estimators import folds, mlp
from kvrepro.labels.corpus import LabelledCorpus
from kvrepro.models.loading import load
from kvrepro.results import checksums, write_rows
from kvrepro.script import job

with job(snakemake) as run:
    tier, given, params = snakemake.config["tier"], snakemake.input, snakemake.params
    settings, lm = params.settings, load(snakemake.wildcards.model, "cpu")
    g, seed, step = lm.geometry, settings["seed"], settings["every"]
    labelled, tasks = ([LabelledCorpus(path) for path in paths] for paths in (given.labels, given.tasks))
    shipped = mlp.load(given.estimators, g, lm.fingerprint)
    slow, window, hidden = slow_heads(labelled, params.slow), shipped.recipe["window"], shipped.recipe["hidden"]
    trained = [folds.load(path, lm.fingerprint, g.as_dict()) for path in [*given.folds, *given.windows]]
    sets = {"1K": (labelled, step), **{Path(p).stem: ([LabelledCorpus(p)], 1) for p in given.sets}}
    sets[params.task_set] = (tasks, 1)
    parts = [
        shape_rows(g, window, hidden, lm.name, tier),
        dynamics_rows(labelled, step, settings["thresholds"], tier, seed),
        static_rows(lm, tier, seed),
        decile_rows(labelled, g, slow, window, tier, seed),
        cell_rows(labelled, g, window, tier, seed),
        *(length_rows(name, docs, every, shipped, slow, tier, seed) for name, (docs, every) in sets.items()),
        window_rows(labelled, {meta["recipe"]["window"]: fold for fold, meta in trained}, g, hidden, tier),
    ]
    files = [given.estimators, *given.labels, *given.folds, *given.windows, *given.sets, *given.tasks]
    about = run.provenance(weights=lm.fingerprint, inputs=checksums(files))
    write_rows(pd.concat(parts, ignore_index=True), snakemake.output.rows, about)
