# The rollout utility of every KV entry, corpus by corpus, with the checks of GateSight Appendix B.


rule label_corpus:
    input:
        model_files,
    output:
        f"{RESULTS}/labels/{{model}}/{{corpus}}.safetensors",
    log:
        f"{LOGS}/labels/{{model}}/{{corpus}}.log",
    benchmark:
        f"{TIMINGS}/labels/{{model}}/{{corpus}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        settings={k: v for k, v in config["labels"].items() if k != "corpora"},
        entry=corpus_entry,
        corpus=corpus_identity,
        weights=model_weights,
    script:
        "../scripts/labels.py"


rule query_statistics:
    input:
        model_files,
    output:
        f"{RESULTS}/query_statistics/{{model}}.safetensors",
    log:
        f"{LOGS}/query_statistics/{{model}}.log",
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        settings=config["query_statistics"],
        corpora=config["labels"]["corpora"],
        texts=[identity.corpus(entry) for entry in config["labels"]["corpora"]],
        lengths=config["labels"]["tokens"],
        weights=model_weights,
    script:
        "../scripts/query_statistics.py"


rule labels:
    input:
        expand(rules.label_corpus.output, model=analysed(HERE, "predictors"), corpus=CORPORA),
