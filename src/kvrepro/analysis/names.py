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
    "l2_norm": "L2 norm",
    "random": "random",
    "wg_kv": "WG-KV",
    "local_attention": "Local Attention",
    "duo_attention": "DuoAttention",
    "quest": "Quest",
    "wg_kv+quest": "WG-KV + Quest",
    "wg_kv+snapkv": "WG-KV + SnapKV",
    "full": "full cache",
}

#: Benchmarks as titles call them, by experiment, and what stands in for them offline.
BENCHMARKS = {
    "ruler": "RULER",
    "scbench": "SCBench",
    "scbench_stand_in": "SCBench stand-ins",
    "helmet": "HELMET",
    "helmet_stand_in": "HELMET stand-ins",
    "longproc": "LongProc",
    "longproc_stand_in": "LongProc stand-ins",
    "reasoning": "reasoning",
}

#: Tasks that titles do not call by their name.
TASKS = {"registers": "register programs", "aime25": "AIME25"}

#: What GateSight's estimators of lab models have seen, beside numbers that they give.
LAB_LABELS = (
    "In the tiers quick and lab, GateSight's estimators were also trained on contexts in RULER's formats; the paper's "
    "were trained on texts alone."
)

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

#: The rules and tasks of the allocation ablation (Table 4, Figure 13), by benchmark, and its smallest kept fraction;
#: what is kept below is Appendix D's.
ALLOCATION_ABLATION = ("gate_proportional", "flat", "pyramid")
ABLATION = {"scbench": ("kv", "qa_eng", "many_shot"), "ruler": ("cwe", "niah_multiquery", "niah_multivalue")}
ABLATION_LEAST = 0.1
ABLATION_TASKS = tuple(task for tasks in ABLATION.values() for task in tasks)

#: Budgets on RULER contexts of another length, which Appendix D has, where a tier names one.
LONG_BUDGETS = "long_budgets"

#: The RULER tasks of Table 6 and Appendix D, and those of them that stay solvable at the smallest budget there.
FIVE_TASKS = ("niah_single_1", "niah_multikey_3", "qa_1", "cwe", "vt")
SOLVABLE_TASKS = tuple(task for task in FIVE_TASKS if task != "niah_multikey_3")
