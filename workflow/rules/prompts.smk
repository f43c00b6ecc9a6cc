# Items of all tasks of a benchmark in each model's tokenizer, and their manifest with the hash of every prompt's token ids.

# models with settings of their own have a rule of their own, since its outputs are of their tasks
OWN = [model for model in MODELS if model in config.get("models", {})]
ALIKE = [[model for model in MODELS if model not in OWN], *([model] for model in OWN)]
ASKED = [
    (name, name, settings_for(models[0])["benchmarks"][name], models)
    for models in ALIKE
    for name in sorted({name for model in models for name in asked_of(model)})
]
if LONG:
    long = config["benchmarks"]["ruler"] | {"tasks": list(FIVE_TASKS)} | config["budgets"]["ruler"]
    ASKED.append((LONG, "ruler", long, MODELS))


for name, asked, settings, models in ASKED:

    rule:
        name:
            f"{name}_prompts_of_{models[0]}" if models in ALIKE[1:] else f"{name}_prompts"
        input:
            model_files,
        output:
            prompts=[f"{RESULTS}/prompts/{{model}}/{name}/{task}.jsonl" for task in settings["tasks"]],
            manifest=f"{RESULTS}/prompts/{{model}}/{name}/manifest.csv",
        log:
            f"{LOGS}/prompts/{{model}}/{name}.log",
        wildcard_constraints:
            model="|".join(model.replace(".", "[.]") for model in models),
        conda:
            "../../envs/conda.yaml"
        params:
            name=asked,
            settings=settings,
            seed=config["seed"],
            texts=identity.texts(benchmark(asked), settings),
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
