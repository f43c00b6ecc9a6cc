# Accuracy of every method at every kept fraction: one prefill of a context serves all of them.


rule ruler_accuracy:
    input:
        unpack(artifacts),
        model=model_files,
        prompts=f"{RESULTS}/prompts/{{model}}/ruler/{{task}}.jsonl",
    output:
        rows=f"{RESULTS}/accuracy/{{model}}/ruler/{{task}}.parquet",
        provenance=f"{RESULTS}/accuracy/{{model}}/ruler/{{task}}.parquet.json",
    log:
        f"{LOGS}/accuracy/{{model}}/ruler/{{task}}.log",
    benchmark:
        f"{BENCHMARKS}/accuracy/{{model}}/ruler/{{task}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        paper=paper_of,
        kept=kept_of,
        methods=methods_of,
        code=method_identity,
        weights=model_weights,
    script:
        "../scripts/accuracy.py"


rule unpruned_accuracy:
    input:
        expand(rules.ruler_accuracy.output.rows, task=TASKS, allow_missing=True),
    output:
        f"{RESULTS}/accuracy/{{model}}/accuracy.json",
    log:
        f"{LOGS}/accuracy/{{model}}/accuracy.log",
    conda:
        "../../envs/conda.yaml"
    params:
        length=config["ruler"]["length"],
    script:
        "../scripts/unpruned_accuracy.py"


rule accuracy:
    input:
        expand(rules.unpruned_accuracy.output, model=MODELS),
        expand(rules.ruler_accuracy.output, model=MODELS, task=TASKS),
        rules.prompts.input,
