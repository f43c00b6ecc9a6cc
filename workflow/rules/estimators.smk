# Utility estimators of a model, the predictors that are compared with them, and how all of them rank entries.


rule estimators_of_model:
    input:
        labels=label_files,
    output:
        estimators=f"{RESULTS}/estimators/{{model}}.safetensors",
        rows=f"{RESULTS}/estimators/{{model}}.parquet",
        provenance=f"{RESULTS}/estimators/{{model}}.parquet.json",
    log:
        f"{LOGS}/estimators/{{model}}.log",
    benchmark:
        f"{TIMINGS}/estimators/{{model}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        recipe=recipe_of,
    script:
        "../scripts/estimators.py"


rule held_out_predictors:
    input:
        labels=label_files,
    output:
        f"{RESULTS}/predictors/{{model}}.folds.safetensors",
    log:
        f"{LOGS}/predictors/{{model}}.folds.log",
    benchmark:
        f"{TIMINGS}/predictors/{{model}}.folds.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        recipe=recipe_of,
    script:
        "../scripts/held_out_predictors.py"


rule predictor_rows:
    input:
        labels=label_files,
        folds=rules.held_out_predictors.output,
    output:
        rows=f"{RESULTS}/predictors/{{model}}.parquet",
        provenance=f"{RESULTS}/predictors/{{model}}.parquet.json",
    log:
        f"{LOGS}/predictors/{{model}}.log",
    conda:
        "../../envs/conda.yaml"
    params:
        settings=config["predictors"],
    script:
        "../scripts/predictor_rows.py"


rule estimators:
    input:
        expand(rules.estimators_of_model.output, model=analysed(HERE, "predictors")),
        expand(rules.held_out_predictors.output, model=analysed(HERE, "predictors")),
        expand(rules.predictor_rows.output, model=analysed(HERE, "predictors")),
