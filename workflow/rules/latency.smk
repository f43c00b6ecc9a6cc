# The latency and memory profile of WG-KV on one GPU at the papers' shapes: snakemake --cores all latency. Its settings are
# those of config/latency.yaml, whatever the tier. Jobs take all cores, so that two never share the GPU. What is made of
# committed rows is committed, too: its provenance is there to be updated, and stays as it is where the result does.
wildcard_constraints:
    place=f"{PROFILE}|reference/{PROFILE}",
    phase="prefill|decode",
    tokens="[0-9]+",
    method="|".join(METHODS),
    sweep="|".join(PROFILE_SWEEPS),


rule latency_job:
    output:
        rows=[f"{PROFILE_ROOT}/{{model}}/{{phase}}-{{tokens}}-{{method}}-{p}.parquet" for p in PROTOCOLS],
        provenance=[f"{PROFILE_ROOT}/{{model}}/{{phase}}-{{tokens}}-{{method}}-{p}.parquet.json" for p in PROTOCOLS],
    log:
        f"logs/{PROFILE}/profile/{{model}}/{{phase}}-{{tokens}}-{{method}}.log",
    conda:
        "../../envs/conda.yaml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        settings=profile_settings,
        code=PROFILE_CODE,
        name=PROFILE,
    script:
        "../scripts/latency_jobs.py"


rule latency_sweep:
    output:
        rows=[f"{PROFILE_ROOT}/{{sweep}}.parquet"],
        provenance=[f"{PROFILE_ROOT}/{{sweep}}.parquet.json"],
    log:
        f"logs/{PROFILE}/profile/{{sweep}}.log",
    conda:
        "../../envs/conda.yaml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        settings=profile_settings,
        code=PROFILE_CODE,
        name=PROFILE,
    script:
        "../scripts/latency_jobs.py"


rule latency_kernels:
    output:
        rows=f"{PROFILE_ROOT}/{profiling.KERNELS}",
        provenance=f"{PROFILE_ROOT}/{profiling.KERNELS}.json",
    log:
        f"logs/{PROFILE}/profile/kernels.log",
    conda:
        "../../envs/conda.yaml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        settings=profile_settings,
        code=PROFILE_CODE,
        name=PROFILE,
    script:
        "../scripts/latency_kernels.py"


rule latency_check:
    # the code path of every job and kernel on sizes for a CPU, where Triton's interpreter runs the kernels
    output:
        rows=f"{RESULTS}/profile/tiny.parquet",
        provenance=f"{RESULTS}/profile/tiny.parquet.json",
    log:
        f"{LOGS}/profile/tiny.log",
    conda:
        "../../envs/conda.yaml"
    params:
        code=PROFILE_CODE,
        name="tiny",
    script:
        "../scripts/latency_kernels.py"


for name in PROFILE_FIGURES:

    rule:
        name:
            f"latency_{name}"
        input:
            rows=profile_files,
            plotted=PUBLISHED,
        output:
            pdf=f"figures/{{place}}/wg_kv/{name}.pdf",
            png=report(
                f"figures/{{place}}/wg_kv/{name}.png",
                caption="../report/latency.rst",
                category="wg_kv",
                subcategory="figures",
                labels={"figure": name, "tier": "{place}"},
            ),
        log:
            f"logs/{{place}}/figures/wg_kv/{name}.log",
        conda:
            "../../envs/conda.yaml"
        params:
            name=name,
            profile=PROFILE,
            published=published_values,
            code=PROFILE_DRAWING,
        script:
            "../scripts/latency_figure.py"


rule latency_scoring:
    # by itself: python -m kvrepro.profiling.bench_scoring --out FILE
    input:
        gpu_alone,
    output:
        csv=f"results/{PROFILE}/{SCORING}",
        provenance=f"results/{PROFILE}/{SCORING}.json",
    log:
        f"logs/{PROFILE}/scoring.log",
    conda:
        "../../envs/conda.yaml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        code=PROFILE_CODE,
        seconds=1800,
    script:
        "../scripts/latency_scoring.py"


rule scoring_rows:
    input:
        csv=f"results/{{place}}/{SCORING}",
    output:
        rows=[f"results/{{place}}/scoring/{model}.parquet" for model in SCORING_SETTINGS.shapes],
        shapes=[f"results/{{place}}/shapes/{model}.parquet" for model in SCORING_SETTINGS.shapes],
        provenance=[
            update(f"results/{{place}}/{folder}/{model}.parquet.json")
            for folder in ("scoring", "shapes")
            for model in SCORING_SETTINGS.shapes
        ],
    log:
        "logs/{place}/scoring/rows.log",
    conda:
        "../../envs/conda.yaml"
    params:
        shapes={name: dict(vars(shape)) for name, shape in SCORING_SETTINGS.shapes.items()},
        estimators=dict(SCORING_SETTINGS.estimators),
        code=PROFILE_DRAWING,
    script:
        "../scripts/scoring_rows.py"


for name in SCORING_TABLES:

    rule:
        name:
            f"scoring_{name}"
        input:
            scoring_rows,
        output:
            csv=f"results/{{place}}/tables/gatesight/{name}.csv",
            provenance=f"results/{{place}}/tables/gatesight/{name}.csv.json",
            md=report(
                f"results/{{place}}/tables/gatesight/{name}.md",
                caption="../report/scoring.rst",
                category="gatesight",
                subcategory="tables",
                labels={"table": name, "tier": "{place}"},
            ),
        log:
            f"logs/{{place}}/tables/gatesight/{name}.log",
        wildcard_constraints:
            place=f"{PROFILE}|{HERE}",
        conda:
            "../../envs/conda.yaml"
        params:
            name=name,
            code=PROFILE_DRAWING,
        script:
            "../scripts/scoring_table.py"


rule latency_goals:
    input:
        rows=goal_files,
        plotted=PUBLISHED,
    output:
        goals="results/{place}/goals.csv",
        provenance=update("results/{place}/goals.csv.json"),
    log:
        "logs/{place}/goals.log",
    conda:
        "../../envs/conda.yaml"
    params:
        profile=PROFILE,
        published=published_values,
        code=PROFILE_DRAWING,
    script:
        "../scripts/latency_goals.py"


rule latency_tables:
    input:
        profile_files,
    output:
        ratios="results/{place}/tables/wg_kv/latency.csv",
        md=report(
            "results/{place}/tables/wg_kv/latency.md",
            caption="../report/latency.rst",
            category="wg_kv",
            subcategory="tables",
            labels={"table": "latency", "tier": "{place}"},
        ),
        provenance=update("results/{place}/tables/wg_kv/latency.csv.json"),
    log:
        "logs/{place}/tables/wg_kv/latency.log",
    conda:
        "../../envs/conda.yaml"
    params:
        profile=PROFILE,
        code=PROFILE_DRAWING,
    script:
        "../scripts/latency_tables.py"


rule latency:
    input:
        latency_products(PROFILE),
        scoring_products(PROFILE),


rule latency_reference:
    input:
        [product for place in PROFILED if place != PROFILE for product in latency_products(place)],
        [f"results/{place}/goals.csv" for place in SCORED if place != PROFILE],
        scoring_products(HERE),
