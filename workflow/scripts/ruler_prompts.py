"""Items of one RULER task in a model's tokenizer."""

from kvrepro.benchmarks import ruler
from kvrepro.data import corpora
from kvrepro.models import registry
from kvrepro.models.tokenizer import load_tokenizer
from kvrepro.script import job

with job(snakemake):
    given = dict(snakemake.params.sources)
    prose, count = given.pop("prose", None), given.pop("word_count", None)
    sources = ruler.offline(
        corpora.sentences(prose, "heldout") if prose else [],
        corpora.common_words(count) if count else [],
    )
    model = snakemake.wildcards.model
    examples = ruler.generate(
        snakemake.wildcards.task,
        snakemake.params.number,
        snakemake.params.length,
        load_tokenizer(model),
        snakemake.params.seed,
        ruler.with_files(sources, **given),
        chat=registry.entry(model).get("chat", False),
    )
    ruler.write_prompts(examples, snakemake.output[0])
