"""Items of all tasks of a benchmark in a model's tokenizer, and their manifest."""

from tqdm import tqdm

from kvrepro.benchmarks.prompts import write_manifest, write_prompts
from kvrepro.benchmarks.registry import benchmark
from kvrepro.models import registry
from kvrepro.models.tokenizer import load_tokenizer
from kvrepro.script import job

with job(snakemake):
    model, params = snakemake.wildcards.model, snakemake.params
    tokenizer, entry = load_tokenizer(model), registry.entry(model)
    chat, lab = entry.get("chat", False), entry.get("lab", False)
    tasks = benchmark(params.name).generate(params.settings, tokenizer, params.seed, chat, lab)
    made = []
    for examples, path in zip(tqdm(tasks), snakemake.output.prompts, strict=True):
        write_prompts(examples, path)
        made += examples
    write_manifest(made, tokenizer, snakemake.output.manifest, chat)
