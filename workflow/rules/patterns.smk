# Patterns of attention in code, and what each head admits of two kinds of contexts (WG-KV §2.3, Appendix H).


rule pattern_rows:
    input:
        unpack(pattern_prompts),
        model=model_files,
        gates=f"{RESULTS}/write_gates/{{model}}.safetensors",
    output:
        rows=f"{RESULTS}/patterns/{{model}}.parquet",
        provenance=f"{RESULTS}/patterns/{{model}}.parquet.json",
    log:
        f"{LOGS}/patterns/{{model}}.log",
    benchmark:
        f"{TIMINGS}/patterns/{{model}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        settings=pattern_settings,
        texts=pattern_texts,
        code=identity.code([PACKAGE / "methods/admission/write_gate.py", PACKAGE / "methods/bounding"]),
        weights=model_weights,
    script:
        "../scripts/pattern_rows.py"


rule patterns:
    input:
        expand(rules.pattern_rows.output, model=analysed(HERE, "patterns")),
