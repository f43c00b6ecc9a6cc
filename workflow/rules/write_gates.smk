# Write gates of a model for every lambda of its recipe, with its window and without a local cache (a window of the token
# itself, WG-KV Appendix G), and the heads that DuoAttention identifies. Lambdas train side by side, as many as the recipe
# says together in one job; a killed training continues from its checkpoint under build/.


rule write_gates_of_lambdas:
    input:
        model=model_files,
    output:
        gates=f"{RESULTS}/{{sweep}}/{{model}}/{{lambdas}}.safetensors",
        rows=f"{RESULTS}/{{sweep}}/{{model}}/{{lambdas}}.parquet",
        provenance=f"{RESULTS}/{{sweep}}/{{model}}/{{lambdas}}.parquet.json",
        card=f"{RESULTS}/{{sweep}}/{{model}}/{{lambdas}}.md",
    log:
        f"{LOGS}/{{sweep}}/{{model}}/{{lambdas}}.log",
    benchmark:
        f"{TIMINGS}/{{sweep}}/{{model}}/{{lambdas}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        recipe=gate_recipe_of,
        weights=model_weights,
    script:
        "../scripts/write_gates.py"


rule write_gates_of_model:
    input:
        gates=files_of_lambdas("safetensors"),
        rows=files_of_lambdas("parquet"),
        provenance=files_of_lambdas("parquet.json"),
    output:
        gates=f"{RESULTS}/{{sweep}}/{{model}}.safetensors",
        rows=f"{RESULTS}/{{sweep}}/{{model}}.parquet",
        provenance=f"{RESULTS}/{{sweep}}/{{model}}.parquet.json",
    log:
        f"{LOGS}/{{sweep}}/{{model}}.log",
    conda:
        "../../envs/conda.yaml"
    script:
        "../scripts/join_write_gates.py"


rule head_profile_of_model:
    input:
        model=model_files,
        pattern=head_pattern,
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
        recipe=head_recipe_of,
        weights=model_weights,
    script:
        "../scripts/head_profile.py"


for path, source in HEAD_PATTERNS.items():

    rule:
        name:
            f"head_pattern_{Path(path).stem}"
        output:
            path,
        log:
            f"{LOGS}/{path}.log",
        conda:
            "../../envs/conda.yaml"
        params:
            files={path: source},
        script:
            "../scripts/download.py"
