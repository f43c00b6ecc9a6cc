"""Names of methods, predictors and metrics in rows and for readers, apart from the code that needs torch."""

PERCENT = (5, 10, 20)
METRICS = ("spearman", *(f"{kind}@{p}" for kind in ("overlap", "coverage") for p in PERCENT))

#: Methods as figures and tables call them. One that is not listed is called by its name.
METHODS = {
    "dense": "no prune",
    "gatesight": "GateSight",
    "snapkv": "SnapKV",
    "keydiff": "KeyDiff",
    "kvzip": "KVzip",
    "triattention": "TriAttention",
    "random": "random",
    "write_gate": "WG-KV",
    "local_attention": "Local Attention",
    "duo_attention": "DuoAttention",
}

#: Predictors as figures and tables call them, in the order of the paper's Table 5.
PREDICTORS = {
    "random": "random",
    "age": "age (older first)",
    "v_preceding": "‖v‖, preceding GDN layer",
    "beta": "β, window mean",
    "forget": "-g, window mean",
    "retention": "retention exp(g), window mean",
    "write": "β‖v‖, window mean",
    "v_slow": "‖v‖ into slow heads",
    "write_slow": "slow-head β‖v‖",
    "oracle": "best single GDN head (oracle)",
    "age_mlp": "per-head MLP, age only (control)",
    "ridge": "ridge regression",
    "mlp": "per-head MLP (GateSight)",
}

#: The untrained summaries of Figure 2a; ``v`` is in no other comparison.
SUMMARIES = {
    "beta": "β",
    "forget": "-g",
    "v": "‖v‖",
    "write": "β‖v‖",
    "v_slow": "‖v‖ₛ",
    "write_slow": "β‖v‖ₛ",
}

#: The predictors of Table 6.
LENGTH_PREDICTORS = ("random", "age", "write", "write_slow", "mlp")

#: Budget rules of the estimator's scores as figures and tables call them.
ALLOCATIONS = {
    "gate_proportional": "gate-proportional",
    "flat": "flat",
    "pyramid": "PyramidKV",
    "per_head": "gate-proportional per KV head",
    "exponent_0.5": "gate to the power 0.5",
    "exponent_1.5": "gate to the power 1.5",
}
