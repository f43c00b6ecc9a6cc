# The lab models, trained from scratch on one GPU: snakemake --cores all lab_models. The models that the tiers use are
# committed under models/; what is made here stands under build/lab and replaces nothing by itself.


rule lab_data:
    output:
        tokenizer=f"{LAB}/data/tokenizer.json",
        prompts=f"{LAB}/data/items-4096.json.xz",
    log:
        f"{LAB}/logs/data.log",
    conda:
        "../../envs/conda.yaml"
    shell:
        "data=$(dirname {output.tokenizer});"
        " python -m kvrepro.training.lab.prepare --out $data > {log} 2>&1;"
        " python -m kvrepro.training.lab.evaluation items --data $data >> {log} 2>&1"


rule lab_train:
    # all parts; continues from the checkpoint in its folder, so a killed run loses little
    input:
        config="config/lab/{name}.yaml",
        data=rules.lab_data.output,
    output:
        done=f"{LAB}/{{name}}-{{seed}}/done",
    log:
        f"{LAB}/logs/{{name}}-{{seed}}.train.log",
    conda:
        "../../envs/conda.yaml"
    threads: 4
    resources:
        gpu=1,
    shell:
        "python -m kvrepro.training.lab.train --config {input.config} --data $(dirname {input.data[0]})"
        " --seed {wildcards.seed} --workers {threads} --out $(dirname {output.done}) > {log} 2>&1"


rule lab_evaluate:
    input:
        config="config/lab/{name}.yaml",
        data=rules.lab_data.output,
        done=rules.lab_train.output.done,
    output:
        f"{LAB}/{{name}}-{{seed}}/evaluation.json",
    log:
        f"{LAB}/logs/{{name}}-{{seed}}.evaluate.log",
    conda:
        "../../envs/conda.yaml"
    resources:
        gpu=1,
    shell:
        "python -m kvrepro.training.lab.evaluation run --config {input.config} --data $(dirname {input.data[0]})"
        " --run $(dirname {input.done}) > {log} 2>&1"


rule lab_export:
    input:
        config="config/lab/{name}.yaml",
        data=rules.lab_data.output,
        evaluation=rules.lab_evaluate.output,
    output:
        f"{LAB}/{{name}}-{{seed}}/model/config.json",
    log:
        f"{LAB}/logs/{{name}}-{{seed}}.export.log",
    conda:
        "../../envs/conda.yaml"
    shell:
        "python -m kvrepro.training.lab.export weights --config {input.config} --data $(dirname {input.data[0]})"
        " --run $(dirname {input.evaluation}) --out $(dirname {output}) > {log} 2>&1"


rule lab_card:
    input:
        config="config/lab/{name}.yaml",
        models=lab_exports,
    output:
        f"{LAB}/{{name}}-{{seed}}/model/README.md",
    log:
        f"{LAB}/logs/{{name}}-{{seed}}.card.log",
    conda:
        "../../envs/conda.yaml"
    shell:
        "python -m kvrepro.training.lab.export card --config {input.config} --folders $(dirname {input.models})"
        " --shipped {wildcards.seed} --out {output} > {log} 2>&1"


rule lab_models:
    input:
        [f"{LAB}/{name}-{seed}/model/README.md" for name in config["lab_models"]["names"] for seed in seeds_of(name)],
