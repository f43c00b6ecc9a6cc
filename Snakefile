# The table of contents. A tier (config/tiers/) decides everything; the steps are in workflow/rules/, one file a stage.
#
#   snakemake --cores all                      the quick tier: labels, estimators, evaluation, tables, figures, claims
#   snakemake --cores all --config tier=lab    another tier
#   snakemake --cores all accuracy             up to one of the targets below
from kvrepro.config import load, ready
from kvrepro.errors import InputError
from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.0")


configfile: "config/config.yaml"


try:
    config.update(load(config))
except InputError as error:
    raise WorkflowError(str(error)) from None


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/prompts.smk"
include: "workflow/rules/labels.smk"
include: "workflow/rules/estimators.smk"
include: "workflow/rules/observations.smk"
include: "workflow/rules/gates.smk"
include: "workflow/rules/write_gates.smk"
include: "workflow/rules/patterns.smk"
include: "workflow/rules/accuracy.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/latency_common.smk"
include: "workflow/rules/latency.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/lab_models.smk"


localrules:
    all,
    prompts,
    labels,
    estimators,
    observations,
    gates,
    patterns,
    accuracy,
    tables,
    published_curves,
    figures,
    claims,
    reference,
    latency,
    latency_reference,
    lab_models,


rule all:
    default_target: True
    input:
        rules.prompts.input,
        rules.labels.input,
        rules.estimators.input,
        rules.observations.input,
        rules.gates.input,
        rules.patterns.input,
        rules.accuracy.input,
        rules.tables.input,
        rules.figures.input,
        rules.latency_check.output,
        rules.latency_reference.input,
        rules.claims.input,


onstart:
    try:
        ready(config, local=workflow.local_exec)
    except InputError as error:
        raise WorkflowError(str(error)) from None


onsuccess:
    if Path(f"{RESULTS}/claims.md").exists():
        print(f"Claims: {RESULTS}/claims.md. Figures: figures/{HERE}. Tables: {RESULTS}/tables.")
