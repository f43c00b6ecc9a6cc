"""Names of predictors and metrics as rows and readers know them, apart from the code that needs torch."""

PERCENT = (5, 10, 20)
METRICS = ("spearman", *(f"{kind}@{p}" for kind in ("overlap", "coverage") for p in PERCENT))

#: Predictors by name, as the paper's Table 5 lists them.
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
    "age_mlp": "per-head MLP, 3 age features only (control)",
    "ridge": "ridge regression",
    "mlp": "per-head MLP (GateSight)",
}
