# GateSight's observations beyond the predictors of Table 5: memory dynamics, single heads, windows, longer documents.

OBSERVED = config["observations"]
WINDOWS = [window for window in OBSERVED["windows"] if window != config["estimators"]["window"]]
SETS = {f"{each['tokens'] // 1024}K": each for each in OBSERVED["sets"]}
TASK_SET = f"ruler_{OBSERVED['ruler']['length'] // 1024}K"


rule label_set:
    # longer documents of all corpora in turn, held out from the estimators
    input:
        model_files,
    output:
        f"{RESULTS}/labels/{{model}}/sets/{{set}}.safetensors",
    log:
        f"{LOGS}/labels/{{model}}/sets/{{set}}.log",
    wildcard_constraints:
        set="|".join(SETS),
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        settings={k: v for k, v in config["labels"].items() if k != "corpora"},
        set=lambda wildcards: SETS[wildcards.set],
        corpora=config["labels"]["corpora"],
        texts=[identity.corpus(entry) for entry in config["labels"]["corpora"]],
        weights=model_weights,
    script:
        "../scripts/label_set.py"


rule label_tasks:
    # the contexts of RULER tasks
    input:
        model_files,
    output:
        [f"{RESULTS}/labels/{{model}}/sets/{TASK_SET}/{task}.safetensors" for task in OBSERVED["ruler"]["tasks"]],
    log:
        f"{LOGS}/labels/{{model}}/sets/{TASK_SET}.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        settings={k: v for k, v in config["labels"].items() if k != "corpora"},
        ruler=config["benchmarks"]["ruler"] | OBSERVED["ruler"],
        seed=config["seed"],
        texts=identity.texts(benchmark("ruler"), config["benchmarks"]["ruler"]),
        weights=model_weights,
    script:
        "../scripts/label_tasks.py"


rule window_folds:
    input:
        labels=label_files,
    output:
        f"{RESULTS}/predictors/{{model}}/window-{{window}}.folds.safetensors",
    log:
        f"{LOGS}/predictors/{{model}}/window-{{window}}.log",
    wildcard_constraints:
        window="[0-9]+",
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        recipe=lambda wildcards: recipe_of(wildcards) | {"window": int(wildcards.window)},
    script:
        "../scripts/window_folds.py"


rule observation_rows:
    input:
        model=model_files,
        labels=label_files,
        estimators=rules.estimators_of_model.output.estimators,
        folds=rules.held_out_predictors.output,
        windows=expand(rules.window_folds.output, window=WINDOWS, allow_missing=True),
        sets=expand(rules.label_set.output, set=SETS, allow_missing=True),
        tasks=rules.label_tasks.output,
    output:
        rows=f"{RESULTS}/observations/{{model}}.parquet",
        provenance=f"{RESULTS}/observations/{{model}}.parquet.json",
    log:
        f"{LOGS}/observations/{{model}}.log",
    conda:
        "../../envs/conda.yaml"
    params:
        settings=OBSERVED,
        slow=config["predictors"]["slow_threshold"],
        sets=list(SETS),
        task_set=TASK_SET,
        weights=model_weights,
    script:
        "../scripts/observation_rows.py"


rule observations:
    input:
        expand(rules.observation_rows.output, model=analysed(HERE, "observations")),
