# Paths, and what input functions and params need to know of the config. The logic is in the library.
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import kvrepro
from kvrepro import identity, yamlfile
from kvrepro.analysis import published
from kvrepro.analysis.names import FIVE_TASKS, LONG_BUDGETS
from kvrepro.benchmarks.helmet.definitions import DOWNLOADS
from kvrepro.benchmarks.registry import BENCHMARKS, benchmark
from kvrepro.config import command, commands, described, gate_recipe, head_recipe, load, own
from kvrepro.config import models_of as all_models
from kvrepro.labels import documents
from kvrepro.methods.composition import running
from kvrepro.methods.published import HEAD_PATTERNS
from kvrepro.products import FIGURES, TABLES
from kvrepro.training.gates.recipe_file import trained_together
from kvrepro.models import registry

PACKAGE = Path(kvrepro.__file__).parent
HERE = config["tier"]
RESULTS = f"results/{HERE}"
LOGS = f"logs/{HERE}"
TIMINGS = f"{RESULTS}/benchmarks"
LAB = "build/lab"
ENTRIES = registry.entries()
MODELS = all_models(config)
CORPORA = {documents.name(entry): entry for entry in config["labels"]["corpora"]}
SWEEPS = ("write_gates", "no_local_cache")
GPU = int(config["device"].startswith("cuda"))

# Committed results of other tiers, in the layout of results/<tier>, of which figures, tables and claims are drawn too.
REFERENCE = {
    f"reference/{path.name}": load({"tier": path.name})
    for path in sorted(Path("results/reference").glob("*"))
    if Path(f"config/tiers/{path.name}.yaml").exists()
}
SETTINGS = {HERE: dict(config)} | REFERENCE


@cache
def settings_for(model, where=HERE):
    """The settings of a tier as they are for one of its models."""
    return own(SETTINGS[where], model)


def experiment_of(model, paper, where=HERE):
    """The experiment of a paper as a model runs it, empty where it does not."""
    return settings_for(model, where)["experiments"].get(paper, {"benchmarks": [], "methods": {}})


UNPRUNED = [name for name in ("ruler", "reasoning") if name in config["benchmarks"]]
RUNS = sorted({(m, b) for m in MODELS for e in settings_for(m)["experiments"].values() for b in e["benchmarks"]})


def long_set(where):
    """What the RULER contexts of another length, on which a tier compares budgets, are called, or None."""
    given = SETTINGS[where]["budgets"].get("ruler")
    return f"ruler_{given['length'] // 1024}K" if given else None


LONG = long_set(HERE)


wildcard_constraints:
    where="|".join(SETTINGS),
    paper="gatesight|wg_kv",
    model="[A-Za-z0-9._-]+",
    benchmark="|".join([*config["benchmarks"], *([LONG] if LONG else [])]),
    task="[a-z0-9_]+",
    corpus="[A-Za-z0-9._-]+",
    suffix="(-[A-Za-z0-9._-]+)?",
    sweep="|".join(SWEEPS),
    lambdas="[0-9.e+_-]+",


def model_files(wildcards):
    """Weights and tokenizer of a local model. Their content is in the params, so a date alone starts nothing."""
    path = ENTRIES[wildcards.model].get("path")
    patterns = ("config.json", "generation_config.json", "tokenizer*.json", "*.safetensors*")
    return [ancient(str(file)) for pattern in patterns for file in sorted(Path(path).glob(pattern))] if path else []


def model_weights(wildcards):
    return identity.weights(wildcards.model)


def model_tokenizer(wildcards):
    return identity.tokenizer(wildcards.model)


def models_of(where, paper):
    """The models a paper's results are measured on in a tier; the first one's figures carry no suffix."""
    return SETTINGS[where]["experiments"].get(paper, {"models": []})["models"]


def analysed(where, analysis):
    """The models that an analysis is made on in a tier."""
    runs = [(model, paper) for paper, e in SETTINGS[where]["experiments"].items() for model in e["models"]]
    return [model for model, paper in runs if analysis in experiment_of(model, paper, where).get("analyses", [])]


def model_of(wildcards):
    return wildcards.suffix[1:] or models_of(wildcards.where, wildcards.paper)[0]


def suffixes(where, paper):
    return ["" if number == 0 else f"-{model}" for number, model in enumerate(models_of(where, paper))]


def lab_of(wildcards):
    return ENTRIES[model_of(wildcards)].get("lab", False)


def accuracy_files(where, model, benchmark):
    tasks = settings_for(model, where)["benchmarks"][benchmark]["tasks"]
    return [f"results/{where}/accuracy/{model}/{benchmark}/{task}.parquet" for task in tasks]


def unpruned_rows(wildcards):
    """What the accuracy of an unpruned model is told of, by benchmark."""
    names = [name for model, name in RUNS if model == wildcards.model and name in UNPRUNED]
    return {name: accuracy_files(HERE, wildcards.model, name) for name in names}


def unpruned_lengths(wildcards):
    return {name: settings_for(wildcards.model)["benchmarks"][name]["length"] for name in UNPRUNED}


def accuracy_rows(wildcards):
    """Accuracy of the model of a figure or table on all its benchmarks, task by task."""
    where, model = wildcards.where, model_of(wildcards)
    names = experiment_of(model, wildcards.paper, where)["benchmarks"]
    return [file for name in names for file in accuracy_files(where, model, name)]


def accuracy_rows_on(name):
    """The input function of what reads one benchmark."""
    return lambda wildcards: accuracy_files(wildcards.where, model_of(wildcards), name)


def predictor_rows(wildcards):
    return f"results/{wildcards.where}/predictors/{model_of(wildcards)}.parquet"


def observation_rows(wildcards):
    return [predictor_rows(wildcards), f"results/{wildcards.where}/observations/{model_of(wildcards)}.parquet"]


def gate_rows(wildcards):
    return gate_files(wildcards.where, model_of(wildcards))


def gate_files(where, model):
    """Rows of the gate analyses and of other budgets, task by task."""
    runs = {name for e in settings_for(model, where)["experiments"].values() for name in e["benchmarks"]}
    budgets = {name: tasks for name, tasks in SETTINGS[where]["budgets"]["tasks"].items() if name in runs}
    if "ruler" in runs and (name := long_set(where)):
        budgets[name] = FIVE_TASKS
    return [
        f"results/{where}/gates/{model}.parquet",
        *(f"results/{where}/budgets/{model}/{name}/{task}.parquet" for name in budgets for task in budgets[name]),
    ]


def corpus_entry(wildcards):
    return CORPORA[wildcards.corpus]


def corpus_identity(wildcards):
    return identity.corpus(CORPORA[wildcards.corpus])


def label_files(wildcards):
    return [rules.label_corpus.output[0].format(model=wildcards.model, corpus=corpus) for corpus in CORPORA]


def paper_of(wildcards):
    """The paper in whose experiment a model runs a benchmark; checked to be one."""
    experiments = settings_for(wildcards.model)["experiments"].items()
    return next(paper for paper, e in experiments if wildcards.benchmark in e["benchmarks"])


def methods_of(wildcards):
    return running(experiment_of(wildcards.model, paper_of(wildcards))["methods"], wildcards.benchmark)


def kept_of(wildcards):
    return experiment_of(wildcards.model, paper_of(wildcards))["kept"]


@cache
def described_for(model, paper, where=HERE):
    """What the methods of a paper's experiment need, as a model runs it."""
    mine = settings_for(model, where)
    return described(mine, paper) if paper in mine["experiments"] else {}


def method_identity(wildcards):
    methods = described_for(wildcards.model, paper_of(wildcards))
    return {name: identity.code(methods[name]["files"]) for name in methods_of(wildcards)}


def recipe_of(wildcards):
    """How the estimators of a model are trained."""
    recipe = dict(config["estimators"])
    own = recipe.pop("models", {})
    return recipe | own.get(wildcards.model, {})


def needed(where, paper, model):
    """Names of the artefacts that the methods of a paper need for a model in a tier."""
    return sorted({field for method in described_for(model, paper, where).values() for field in method["artifacts"]})


def offered(where, paper, model):
    """What figures may need of the experiment of a paper: its analyses, the artefacts of its methods, and the families
    that these are of."""
    experiment = experiment_of(model, paper, where)
    families = {part for method in experiment["methods"].values() for part in method}
    return {*experiment.get("analyses", []), *needed(where, paper, model), *families}


def artifacts(wildcards):
    """What the methods of a model need from the workflow, by the name of their field."""
    methods = described_for(wildcards.model, paper_of(wildcards))
    fields = sorted({field for name in methods_of(wildcards) for field in methods[name]["artifacts"]})
    return {field: f"{RESULTS}/{field}/{wildcards.model}.safetensors" for field in fields}


def gate_recipe_of(wildcards):
    """How the gates of some lambdas are trained; the lambdas beside them are no part of it."""
    return gate_recipe(wildcards.model, sweep_of(wildcards))[0]


def sweep_of(wildcards):
    """What takes the place of keys of a model's recipe in a sweep."""
    given = settings_for(wildcards.model)["write_gates"]
    return given["recipe"] | (given["no_local_cache"] if wildcards.sweep == "no_local_cache" else {})


def head_recipe_of(wildcards):
    """How DuoAttention's heads of a model are identified. As a parameter, so that its content counts and no date."""
    return head_recipe(wildcards.model, settings_for(wildcards.model)["write_gates"])


def head_pattern(wildcards):
    """The published pattern that a model's recipe names in the place of an identification."""
    pattern = head_recipe_of(wildcards)["heads"].get("pattern")
    return [pattern] if pattern else []


def files_of_lambdas(kind):
    """The input function of what joins the files of one kind of all lambdas of a sweep."""

    def files(wildcards):
        recipe, lambdas = gate_recipe(wildcards.model, sweep_of(wildcards))
        groups = trained_together(lambdas, recipe.get("together", 1))
        return [f"{RESULTS}/{wildcards.sweep}/{wildcards.model}/{group}.{kind}" for group in groups]

    return files


def write_gate_rows(wildcards):
    return f"results/{wildcards.where}/write_gates/{model_of(wildcards)}.parquet"


def local_cache_rows(wildcards):
    """Validation of write gates with the recipe's window, and of those without a local cache."""
    return [f"results/{wildcards.where}/{folder}/{model_of(wildcards)}.parquet" for folder in SWEEPS]


def pattern_rows(wildcards):
    return f"results/{wildcards.where}/patterns/{model_of(wildcards)}.parquet"


def primitive_rows(wildcards):
    model = model_of(wildcards)
    asked = "ruler" in experiment_of(model, wildcards.paper, wildcards.where)["benchmarks"]
    answers = accuracy_files(wildcards.where, model, "ruler") if asked else []
    return [pattern_rows(wildcards), *answers]


def wg_kv_goal_rows(wildcards):
    model = model_of(wildcards)
    names = experiment_of(model, wildcards.paper, wildcards.where)["benchmarks"]
    asked = [name for name in ("ruler", "reasoning") if name in names]
    answers = [row for name in asked for row in accuracy_files(wildcards.where, model, name)]
    return [write_gate_rows(wildcards), *answers]


def pattern_prompts(wildcards):
    """The items that contexts are taken of, by the name of their kind after "of_", since a rule has other inputs."""
    contexts = settings_for(wildcards.model)["patterns"]["contexts"]
    taken = {name: context for name, context in contexts.items() if "benchmark" in context}
    folder = f"{RESULTS}/prompts/{wildcards.model}"
    return {f"of_{name}": f"{folder}/{context['benchmark']}/{context['task']}.jsonl" for name, context in taken.items()}


def pattern_settings(wildcards):
    return settings_for(wildcards.model)["patterns"]


def pattern_texts(wildcards):
    """Identities of the corpora, by their name."""
    patterns = pattern_settings(wildcards)
    entries = [patterns["code"], *(c["corpus"] for c in patterns["contexts"].values() if "corpus" in c)]
    return {documents.name(entry): identity.corpus(entry) for entry in entries}


READS = {
    "accuracy": accuracy_rows,
    "predictors": predictor_rows,
    "observations": observation_rows,
    "gates": gate_rows,
    "write_gates": write_gate_rows,
    "local_cache": local_cache_rows,
    "patterns": pattern_rows,
    "primitives": primitive_rows,
    "goals": wg_kv_goal_rows,
} | {name: accuracy_rows_on(name) for name in BENCHMARKS}


def published_files(figure):
    """The input function of what the paper's authors published of a figure: the files that lie here."""
    return lambda wildcards: published.available(figure.published, model_of(wildcards))


DRAWING = identity.code([PACKAGE / "figures", PACKAGE / "tables", PACKAGE / "analysis"])


def made_for(product, where):
    """The papers and suffixes of models that a figure or table is made for in a tier: those whose experiment has its
    benchmark and what it needs."""
    return [
        (paper, suffix)
        for paper in product.papers
        for model, suffix in zip(models_of(where, paper), suffixes(where, paper), strict=True)
        if product.reads not in BENCHMARKS or product.reads in experiment_of(model, paper, where)["benchmarks"]
        if product.needs is None or product.needs in offered(where, paper, model)
        if drawable(product, where, paper, suffix)
    ]


def drawable(product, where, paper, suffix):
    """Whether a product has its rows in a tier. Committed results may lack those of a part that was not run there."""
    if where == HERE:
        return True
    rows = READS[product.reads](SimpleNamespace(where=where, paper=paper, suffix=suffix))
    return all(Path(row).exists() for row in ([rows] if isinstance(rows, str) else rows))


def table_files(where):
    return [
        f"results/{where}/tables/{paper}/{table.file or name}{suffix}.{kind}"
        for name, table in TABLES.items()
        for paper, suffix in made_for(table, where)
        for kind in ("csv", "md")
    ]


def figure_files(where):
    return [
        f"figures/{where}/{paper}/{figure.file or name}{suffix}.{kind}"
        for name, figure in FIGURES.items()
        for paper, suffix in made_for(figure, where)
        for kind in ("pdf", "png")
    ]


def evidence_files(where):
    """Tidy rows that claims are judged by. Committed results may lack some; claims then are not run there."""
    rows = [
        file
        for paper, experiment in SETTINGS[where]["experiments"].items()
        for model in experiment["models"]
        for benchmark in experiment_of(model, paper, where)["benchmarks"]
        for file in accuracy_files(where, model, benchmark)
    ]
    rows += [
        f"results/{where}/{folder}/{model}.parquet"
        for folder in ("estimators", "predictors")
        for model in analysed(where, "predictors")
    ]
    rows += [f"results/{where}/observations/{model}.parquet" for model in analysed(where, "observations")]
    rows += [f"results/{where}/patterns/{model}.parquet" for model in analysed(where, "patterns")]
    rows += [row for model in analysed(where, "gates") for row in gate_files(where, model)]
    rows += [
        f"results/{where}/{folder}/{model}.parquet"
        for paper, experiment in SETTINGS[where]["experiments"].items()
        for model in experiment["models"]
        if "write_gates" in needed(where, paper, model)
        for folder in SWEEPS
    ]
    return rows if where == HERE else [row for row in rows if Path(row).exists()]


def asked_of(model):
    """The benchmarks that a model needs items of."""
    taken = settings_for(model)["patterns"]["contexts"].values() if model in analysed(HERE, "patterns") else []
    return {name for m, name in RUNS if m == model} | {each["benchmark"] for each in taken if "benchmark" in each}


def seeds_of(name):
    """The seeds that a lab model is trained with."""
    settings = config["lab_models"]
    return settings.get("models", {}).get(name, {}).get("seeds", settings["seeds"])


def lab_exports(wildcards):
    return [f"{LAB}/{wildcards.name}-{seed}/model/config.json" for seed in seeds_of(wildcards.name)]
