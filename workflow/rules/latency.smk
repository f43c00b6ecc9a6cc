# The latency and memory profile of WG-KV on one GPU at the papers' shapes: snakemake --cores all latency. Its settings are
# those of config/latency.yaml, whatever the tier. Jobs take all cores, so that two never share the GPU.
import re

from kvrepro.profiling import run as profiling
from kvrepro.profiling.settings import METHODS, PROTOCOLS, end_to_end
from kvrepro.profiling.settings import load as load_profile
from kvrepro.figures.latency import FIGURES as PROFILE_FIGURES

PROFILE = "h200"
PROFILE_SETTINGS = load_profile(PROFILE)
PROFILE_MODELS = list(PROFILE_SETTINGS.profile.models)
PROFILE_COMMAND = "snakemake --cores all latency"
PROFILE_ROOT = f"results/{PROFILE}/profile"
PROFILE_JOBS = {job.file.removesuffix(".parquet"): job for job in profiling.jobs_of(PROFILE_SETTINGS)}
# A rule's wildcards name the end-to-end jobs of both protocols at once; the rest go by the name of their file.
PROFILE_SWEEPS = [re.escape(name) for name, job in PROFILE_JOBS.items() if job.experiment != "end_to_end"]
PROFILE_CODE = identity.code([PACKAGE / "profiling", PACKAGE / "kernels", PACKAGE / "cache"])
PROFILE_DRAWING = identity.code([PACKAGE / "profiling", PACKAGE / "figures", PACKAGE / "tables"])


def made_at(place):
    """The profile's files that are there."""
    return sorted(map(str, Path(f"results/{place}/profile").rglob("*.parquet")))


# Places whose rows can be drawn and judged: what was made here and what is committed
PROFILED = {place: made_at(place) for place in (PROFILE, f"reference/{PROFILE}") if made_at(place)}


def profile_settings(wildcards=None):
    """What the jobs read of config/latency.yaml."""
    shapes = {name: dict(vars(PROFILE_SETTINGS.shapes[name])) for name in PROFILE_MODELS}
    return {"profile": dict(vars(PROFILE_SETTINGS.profile)), "shapes": shapes}


def profile_files(wildcards):
    """All files of the profile, made on a GPU; those of the committed results as they are."""
    if wildcards.place != PROFILE:
        return made_at(wildcards.place)
    needs_gpu()
    return [f"{PROFILE_ROOT}/{profiling.KERNELS}", *(f"{PROFILE_ROOT}/{name}.parquet" for name in PROFILE_JOBS)]


def needs_gpu():
    """A machine without a GPU is told so before anything starts; a dry run, and a cluster's head node, need none."""
    if workflow.local_exec and not workflow.dryrun:
        try:
            profiling.require_device(PROFILE_SETTINGS.profile)
        except InputError as error:
            raise WorkflowError(str(error)) from None


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


rule latency_tables:
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
        [product for place in PROFILED if place != PROFILE for product in latency_products(place)],
