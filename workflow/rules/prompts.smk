# RULER items of all tasks in each model's tokenizer, and their manifest with the hash of every prompt's token ids.


rule ruler_prompts:
    input:
        model_files,
    output:
        prompts=[f"{RESULTS}/prompts/{{model}}/ruler/{task}.jsonl" for task in TASKS],
        manifest=f"{RESULTS}/prompts/{{model}}/ruler/manifest.csv",
    log:
        f"{LOGS}/prompts/{{model}}/ruler.log",
    conda:
        "../../envs/conda.yaml"
    params:
        tasks=TASKS,
        length=config["ruler"]["length"],
        number=config["ruler"]["items"],
        sources=config["ruler"]["sources"],
        seed=config["seed"],
        texts=identity.ruler_sources(config["ruler"]["sources"]),
        tokenizer=model_tokenizer,
    script:
        "../scripts/ruler_prompts.py"


rule prompts:
    input:
        expand(rules.ruler_prompts.output, model=MODELS),
