# Accuracy of every method at every kept fraction: one prefill of a context serves all of them.


rule benchmark_accuracy:
    input:
        unpack(artifacts),
        model=model_files,
        prompts=f"{RESULTS}/prompts/{{model}}/{{benchmark}}/{{task}}.jsonl",
    output:
        rows=f"{RESULTS}/accuracy/{{model}}/{{benchmark}}/{{task}}.parquet",
        provenance=f"{RESULTS}/accuracy/{{model}}/{{benchmark}}/{{task}}.parquet.json",
    log:
        f"{LOGS}/accuracy/{{model}}/{{benchmark}}/{{task}}.log",
    benchmark:
        f"{TIMINGS}/accuracy/{{model}}/{{benchmark}}/{{task}}.tsv"
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
        unpack(unpruned_rows),
    output:
        f"{RESULTS}/accuracy/{{model}}/accuracy.json",
    log:
        f"{LOGS}/accuracy/{{model}}/accuracy.log",
    conda:
        "../../envs/conda.yaml"
    params:
        lengths=unpruned_lengths,
    script:
        "../scripts/unpruned_accuracy.py"


rule accuracy:
    input:
        [f"{RESULTS}/accuracy/{model}/accuracy.json" for model, benchmark in RUNS if benchmark in UNPRUNED],
        [file for model, benchmark in RUNS for file in accuracy_files(HERE, model, benchmark)],
        rules.prompts.input,
