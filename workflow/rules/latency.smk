# The latency and memory profile of WG-KV on one GPU at the papers' shapes: snakemake --cores all latency. Its settings are
# those of config/latency.yaml, whatever the tier. Jobs take all cores, so that two never share the GPU.
from functools import partial

from kvrepro.profiling import run as profiling
from kvrepro.profiling.settings import METHODS, PROTOCOLS, end_to_end
from kvrepro.profiling.settings import load as load_profile
from kvrepro.figures.latency import FIGURES as PROFILE_FIGURES

PROFILE = "h200"
PROFILE_RESULTS = f"results/{PROFILE}/profile"
PROFILE_JOBS = {
    job.file.removesuffix(".parquet"): job for job in profiling.jobs_of(load_profile(PROFILE))
}
# A rule's wildcards name the end-to-end jobs of both protocols at once; the rest go by the name of their file.
PROFILE_SWEEPS = [name for name, job in PROFILE_JOBS.items() if job.experiment != "end_to_end"]
PROFILE_CODE = identity.code([PACKAGE / "profiling", PACKAGE / "kernels", PACKAGE / "cache"])
PROFILE_DRAWING = identity.code([PACKAGE / "profiling", PACKAGE / "figures", PACKAGE / "tables"])
PROFILE_PLACES = [PROFILE, *(f"reference/{PROFILE}" for _ in Path("results/reference").glob(PROFILE))]


def profile_settings(wildcards=None):
    """What the jobs read of config/latency.yaml."""
    s = load_profile(PROFILE)
    return {"profile": dict(vars(s.profile)), "shapes": {name: dict(vars(shape)) for name, shape in s.shapes.items()}}


def profile_files(wildcards):
    """All files of the profile, made on a GPU; those of the committed results as they are."""
    root = f"results/{wildcards.place}/profile"
    if wildcards.place == PROFILE:
        needs_gpu()
        return [f"{root}/{profiling.KERNELS}", *(f"{root}/{name}.parquet" for name in PROFILE_JOBS)]
    return sorted(map(str, Path(root).rglob("*.parquet")))


def needs_gpu():
    """A machine without a GPU is told so before anything starts; a dry run, and a cluster's head node, need none."""
    if workflow.local_exec and not workflow.dryrun:
        try:
            profiling.require_device(load_profile(PROFILE).profile)
        except InputError as error:
            raise WorkflowError(str(error)) from None


wildcard_constraints:
    place="|".join(PROFILE_PLACES),
    phase="prefill|decode",
    tokens="[0-9]+",
    method="|".join(METHODS),
    sweep="|".join(PROFILE_SWEEPS),


rule profile_job:
    output:
        rows=[f"{PROFILE_RESULTS}/{{model}}/{{phase}}-{{tokens}}-{{method}}-{p}.parquet" for p in PROTOCOLS],
        provenance=[f"{PROFILE_RESULTS}/{{model}}/{{phase}}-{{tokens}}-{{method}}-{p}.parquet.json" for p in PROTOCOLS],
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


rule profile_sweep:
    output:
        rows=[f"{PROFILE_RESULTS}/{{sweep}}.parquet"],
        provenance=[f"{PROFILE_RESULTS}/{{sweep}}.parquet.json"],
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


rule profile_kernels:
    output:
        rows=f"{PROFILE_RESULTS}/{profiling.KERNELS}",
        provenance=f"{PROFILE_RESULTS}/{profiling.KERNELS}.json",
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


rule profile_check:
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
            f"profile_{name}"
        input:
            profile_files,
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
            code=PROFILE_DRAWING,
        script:
            "../scripts/latency_figure.py"


rule profile_tables:
    input:
        profile_files,
    output:
        goals="results/{place}/goals.csv",
        ratios="results/{place}/tables/wg_kv/latency.csv",
        md=report(
            "results/{place}/tables/wg_kv/latency.md",
            caption="../report/latency.rst",
            category="wg_kv",
            subcategory="tables",
            labels={"table": "latency", "tier": "{place}"},
        ),
        provenance=["results/{place}/goals.csv.json", "results/{place}/tables/wg_kv/latency.csv.json"],
    log:
        "logs/{place}/tables/wg_kv/latency.log",
    conda:
        "../../envs/conda.yaml"
    params:
        profile=PROFILE,
        code=PROFILE_DRAWING,
    script:
        "../scripts/latency_tables.py"


def latency_products(place):
    """Figures and tables of a profile."""
    figures = [f"figures/{place}/wg_kv/{name}.{kind}" for name in PROFILE_FIGURES for kind in ("pdf", "png")]
    return [*figures, f"results/{place}/goals.csv", f"results/{place}/tables/wg_kv/latency.md"]


rule latency:
    input:
        latency_products(PROFILE),


rule latency_reference:
    input:
        [product for place in PROFILE_PLACES[1:] for product in latency_products(place)],
