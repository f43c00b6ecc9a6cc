"""Items of all RULER tasks in a model's tokenizer, and their manifest."""

from tqdm import tqdm

from kvrepro.benchmarks import ruler
from kvrepro.models import registry
from kvrepro.models.tokenizer import load_tokenizer
from kvrepro.script import job

with job(snakemake):
    model, params = snakemake.wildcards.model, snakemake.params
    tokenizer, entry = load_tokenizer(model), registry.entry(model)
    sources = ruler.from_settings(params.sources, tokenizer, split="eval" if entry.get("lab") else None)
    made = []
    for task, path in zip(tqdm(params.tasks), snakemake.output.prompts, strict=True):
        examples = ruler.generate(
            task, params.number, params.length, tokenizer, params.seed, sources, entry.get("chat", False)
        )
        ruler.write_prompts(examples, path)
        made += examples
    ruler.write_manifest(made, tokenizer, snakemake.output.manifest, entry.get("chat", False))
