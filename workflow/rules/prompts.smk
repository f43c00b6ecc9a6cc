# RULER items of each task in each model's tokenizer, and their manifest with the hash of every prompt's token ids.


rule ruler_prompts:
    input:
        model_files,
    output:
        f"{RESULTS}/prompts/{{model}}/ruler/{{task}}.jsonl",
    log:
        f"{LOGS}/prompts/{{model}}/ruler/{{task}}.log",
    conda:
        "../../envs/conda.yaml"
    params:
        length=config["ruler"]["length"],
        number=config["ruler"]["items"],
        sources=config["ruler"]["sources"],
        seed=config["seed"],
        prose=[identity.corpus(config["ruler"]["sources"].get("prose") or "kjv")],
        tokenizer=model_tokenizer,
    script:
        "../scripts/ruler_prompts.py"


rule ruler_manifest:
    input:
        prompts=expand(rules.ruler_prompts.output, task=TASKS, allow_missing=True),
    output:
        f"{RESULTS}/prompts/{{model}}/ruler/manifest.csv",
    log:
        f"{LOGS}/prompts/{{model}}/ruler/manifest.log",
    conda:
        "../../envs/conda.yaml"
    script:
        "../scripts/ruler_manifest.py"


rule prompts:
    input:
        expand(rules.ruler_manifest.output, model=[*HYBRID, *DENSE]),
        expand(rules.ruler_prompts.output, model=[*HYBRID, *DENSE], task=TASKS),
