# Items of all tasks of a benchmark in each model's tokenizer, and their manifest with the hash of every prompt's token ids.


ASKED = {name: (name, config["benchmarks"][name]) for name in sorted({name for _, name in RUNS} | PATTERN_BENCHMARKS)}
if LONG:
    ASKED[LONG] = "ruler", config["benchmarks"]["ruler"] | {"tasks": list(FIVE_TASKS)} | config["budgets"]["ruler"]


for name, (asked, settings) in ASKED.items():

    rule:
        name:
            f"{name}_prompts"
        input:
            model_files,
        output:
            prompts=[f"{RESULTS}/prompts/{{model}}/{name}/{task}.jsonl" for task in settings["tasks"]],
            manifest=f"{RESULTS}/prompts/{{model}}/{name}/manifest.csv",
        log:
            f"{LOGS}/prompts/{{model}}/{name}.log",
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
