"""The manifest of all RULER prompts of a model."""

from kvrepro.benchmarks import ruler
from kvrepro.models import registry
from kvrepro.models.tokenizer import load_tokenizer
from kvrepro.script import job

with job(snakemake):
    model = snakemake.wildcards.model
    examples = [example for path in snakemake.input.prompts for example in ruler.read_prompts(path)]
    chat = registry.entry(model).get("chat", False)
    ruler.write_manifest(examples, load_tokenizer(model), snakemake.output[0], chat)
