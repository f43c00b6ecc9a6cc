# The output gate (GateSight Appendix D) and other budgets from the same scores (§5.6, Appendix F).


rule gate_statistics:
    input:
        model_files,
    output:
        f"{RESULTS}/gate_statistics/{{model}}.safetensors",
    log:
        f"{LOGS}/gate_statistics/{{model}}.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        documents=config["gates"]["calibration"],
        seed=config["gates"]["seed"],
        corpora=config["labels"]["corpora"],
        texts=[identity.corpus(entry) for entry in config["labels"]["corpora"]],
        lengths=config["labels"]["tokens"],
        weights=model_weights,
    script:
        "../scripts/gate_statistics.py"


rule gate_rows:
    input:
        model=model_files,
        gates=rules.gate_statistics.output,
    output:
        rows=f"{RESULTS}/gates/{{model}}.parquet",
        provenance=f"{RESULTS}/gates/{{model}}.parquet.json",
    log:
        f"{LOGS}/gates/{{model}}.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        settings=config["gates"],
        corpora=config["labels"]["corpora"],
        texts=[identity.corpus(entry) for entry in config["labels"]["corpora"]],
        lengths=config["labels"]["tokens"],
        weights=model_weights,
    script:
        "../scripts/gate_rows.py"


rule budget_rows:
    input:
        model=model_files,
        prompts=f"{RESULTS}/prompts/{{model}}/{{benchmark}}/{{task}}.jsonl",
        estimators=rules.estimators_of_model.output.estimators,
        gates=rules.gate_statistics.output,
    output:
        rows=f"{RESULTS}/budgets/{{model}}/{{benchmark}}/{{task}}.parquet",
        provenance=f"{RESULTS}/budgets/{{model}}/{{benchmark}}/{{task}}.parquet.json",
    log:
        f"{LOGS}/budgets/{{model}}/{{benchmark}}/{{task}}.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        number=config["budgets"]["items"],
        kept=config["budgets"]["kept"],
        rows=config["gates"]["rows"],
        scorer=lambda wildcards: "ruler" if wildcards.benchmark == LONG else wildcards.benchmark,
        experiment=lambda wildcards: LONG_BUDGETS if wildcards.benchmark == LONG else "budgets",
        closing=lambda wildcards: wildcards.benchmark == (LONG or "ruler"),
        weights=model_weights,
    script:
        "../scripts/budget_rows.py"


rule gates:
    input:
        [file for model in analysed(HERE, "gates") for file in gate_files(HERE, model)],
