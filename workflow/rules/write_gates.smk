# Write gates of a model for every lambda of its recipe, and the heads that DuoAttention identifies. A killed training
# continues from its checkpoint under build/.


rule write_gates_of_model:
    input:
        model=model_files,
        recipe="config/write_gates/{model}.yaml",
    output:
        gates=f"{RESULTS}/write_gates/{{model}}.safetensors",
        rows=f"{RESULTS}/write_gates/{{model}}.parquet",
        provenance=f"{RESULTS}/write_gates/{{model}}.parquet.json",
    log:
        f"{LOGS}/write_gates/{{model}}.log",
    benchmark:
        f"{TIMINGS}/write_gates/{{model}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        over=config["write_gates"]["recipe"],
        weights=model_weights,
    script:
        "../scripts/write_gates.py"


rule write_gates_without_local_cache:
    # gates trained anew with a window of the token itself (WG-KV Appendix G)
    input:
        model=model_files,
        recipe="config/write_gates/{model}.yaml",
    output:
        gates=f"{RESULTS}/no_local_cache/{{model}}.safetensors",
        rows=f"{RESULTS}/no_local_cache/{{model}}.parquet",
        provenance=f"{RESULTS}/no_local_cache/{{model}}.parquet.json",
    log:
        f"{LOGS}/no_local_cache/{{model}}.log",
    benchmark:
        f"{TIMINGS}/no_local_cache/{{model}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        over=config["write_gates"]["recipe"] | config["write_gates"]["no_local_cache"],
        weights=model_weights,
    script:
        "../scripts/write_gates.py"


rule head_profile_of_model:
    input:
        model=model_files,
        recipe="config/write_gates/{model}.yaml",
    output:
        f"{RESULTS}/head_profile/{{model}}.safetensors",
    log:
        f"{LOGS}/head_profile/{{model}}.log",
    benchmark:
        f"{TIMINGS}/head_profile/{{model}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        over=config["write_gates"]["head_profile"],
        rows=config["write_gates"]["recipe"],
        weights=model_weights,
    script:
        "../scripts/head_profile.py"
