# Items of all tasks of a benchmark in each model's tokenizer, and their manifest with the hash of every prompt's token ids.


def asked_of(model):
    """The benchmarks that a model needs items of."""
    taken = settings_for(model)["patterns"]["contexts"].values() if model in analysed(HERE, "patterns") else []
    return {name for m, name in RUNS if m == model} | {each["benchmark"] for each in taken if "benchmark" in each}


# models with settings of their own have a rule of their own, since its outputs are of their tasks
OWN = [model for model in MODELS if model in config.get("models", {})]
ALIKE = [[model for model in MODELS if model not in OWN], *([model] for model in OWN)]
PROMPTED = [(name, models) for models in ALIKE for name in sorted({name for m in models for name in asked_of(m)})]


for name, models in PROMPTED:

    rule:
        name:
            f"{name}_prompts" if models is ALIKE[0] else f"{name}_prompts_of_{models[0]}"
        input:
            model_files,
        output:
            prompts=[
                f"{RESULTS}/prompts/{{model}}/{name}/{task}.jsonl"
                for task in settings_for(models[0])["benchmarks"][name]["tasks"]
            ],
            manifest=f"{RESULTS}/prompts/{{model}}/{name}/manifest.csv",
        log:
            f"{LOGS}/prompts/{{model}}/{name}.log",
        wildcard_constraints:
            model="|".join(model.replace(".", "[.]") for model in models),
        conda:
            "../../envs/conda.yaml"
        params:
            name=name,
            settings=settings_for(models[0])["benchmarks"][name],
            seed=config["seed"],
            texts=identity.texts(benchmark(name), settings_for(models[0])["benchmarks"][name]),
            tokenizer=model_tokenizer,
        script:
            "../scripts/prompts.py"


rule prompts:
    input:
        [f"{RESULTS}/prompts/{model}/{benchmark}/manifest.csv" for model, benchmark in RUNS],


rule helmet_data:
    # by hand: snakemake --cores 1 helmet_data; then name the folder as benchmarks.helmet.data of the two tasks
    output:
        [f"data/HELMET/{name}" for name in DOWNLOADS],
    log:
        f"{LOGS}/helmet_data.log",
    conda:
        "../../envs/conda.yaml"
    params:
        files={f"data/HELMET/{name}": source for name, source in DOWNLOADS.items()},
    script:
        "../scripts/download.py"
