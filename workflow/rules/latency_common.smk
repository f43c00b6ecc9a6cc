# Paths of the latency profile, and what its rules need to know of config/latency.yaml. The logic is in the library.
import re
import sys

from snakemake.exceptions import print_exception

from kvrepro.profiling import run as profiling
from kvrepro.profiling import published as latency_published
from kvrepro.profiling import scoring
from kvrepro.profiling.settings import METHODS, PROTOCOLS, end_to_end
from kvrepro.profiling.settings import load as load_profile
from kvrepro.products import PROFILE_FIGURES, SCORING_TABLES

PROFILE = "h200"
PROFILE_SETTINGS = load_profile(PROFILE)
PROFILE_MODELS = list(PROFILE_SETTINGS.profile.models)
PUBLISHED = str(latency_published.FILE)
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
PLACES = (PROFILE, f"reference/{PROFILE}")
PROFILED = {place: made_at(place) for place in PLACES if made_at(place)}

# The scoring cost of GateSight, measured by a program of its own: its file, and the places where there is one
SCORING = "benchmarks/bench_scoring.csv"
SCORING_SETTINGS = scoring.load()
SCORED = [place for place in PLACES if Path(f"results/{place}/{SCORING}").exists()]


def published_values(wildcards):
    """What the paper says of latency and memory, which figures and goals show beside ours."""
    return dict(PROFILE_SETTINGS.published)


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


def scoring_files(place):
    """Rows of the scoring cost, model by model; none of a committed place without the benchmark's file."""
    there = place == PROFILE or place in SCORED
    return [f"results/{place}/scoring/{model}.parquet" for model in SCORING_SETTINGS.shapes] if there else []


def shape_files(place):
    """Counts that follow from the shapes of the benchmark of the scoring cost, model by model, beside its rows."""
    return [f"results/{place}/shapes/{model}.parquet" for model in SCORING_SETTINGS.shapes] if place in SCORED else []


def scoring_rows(wildcards):
    """What a place's Tables 2 and 8 are made of; a tier's are made of the committed rows."""
    return scoring_files(PROFILE if wildcards.place == PROFILE else f"reference/{PROFILE}")


def goal_files(wildcards):
    """Rows of the profile and of the scoring cost, of committed places those that are there."""
    return [*profile_files(wildcards), *scoring_files(wildcards.place)]


def profiled_models(place):
    """The models, by paper, of which a place has rows of the profile or of the scoring cost."""
    return {
        "wg_kv": PROFILE_MODELS if place in PROFILED else [],
        "gatesight": list(SCORING_SETTINGS.shapes) if place in SCORED else [],
    }


def gpu_alone(wildcards):
    """No files, but a machine without a GPU is told so."""
    needs_gpu()
    return []


def needs_gpu():
    """A machine without a GPU is told so before anything starts; a dry run, and a cluster's head node, need none."""
    if workflow.local_exec and not workflow.dryrun:
        try:
            profiling.require_device(PROFILE_SETTINGS.profile)
        except InputError as error:
            # raised in an input function, it would stand within the function's own error and traceback
            print_exception(WorkflowError(str(error)))
            sys.exit(1)


def scoring_products(place):
    """Tables 2 and 8."""
    return [f"results/{place}/tables/gatesight/{name}.{kind}" for name in SCORING_TABLES for kind in ("csv", "md")]


def parts_at(place):
    """The parts of the profile that a place has rows of. Committed results may lack one; a profile made here has all."""
    if place == PROFILE:
        return {"end_to_end", "sweeps", "kernels"}
    made = {Path(file).relative_to(f"results/{place}/profile").as_posix() for file in PROFILED[place]}
    kinds = {job.experiment for name, job in PROFILE_JOBS.items() if f"{name}.parquet" in made}
    parts = {"end_to_end" if kind == "end_to_end" else "sweeps" for kind in kinds}
    return parts | ({"kernels"} if profiling.KERNELS in made else set())


def latency_products(place):
    """Figures and tables of a profile."""
    names = [name for name, figure in PROFILE_FIGURES.items() if figure.needs in parts_at(place)]
    figures = [f"figures/{place}/wg_kv/{name}.{kind}" for name in names for kind in ("pdf", "png")]
    return [*figures, f"results/{place}/goals.csv", f"results/{place}/tables/wg_kv/latency.md"]
