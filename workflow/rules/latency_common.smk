# Paths of the latency profile, and what its rules need to know of config/latency.yaml. The logic is in the library.
import re

from kvrepro.profiling import run as profiling
from kvrepro.profiling.settings import METHODS, PROTOCOLS, end_to_end
from kvrepro.profiling.settings import load as load_profile
from kvrepro.products import PROFILE_FIGURES

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


def latency_products(place):
    """Figures and tables of a profile."""
    figures = [f"figures/{place}/wg_kv/{name}.{kind}" for name in PROFILE_FIGURES for kind in ("pdf", "png")]
    return [*figures, f"results/{place}/goals.csv", f"results/{place}/tables/wg_kv/latency.md"]
