"""Items of one RULER task in a model's tokenizer."""

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.ruler import draws
from kvrepro.data import corpora
from kvrepro.models import registry
from kvrepro.models.tokenizer import load_tokenizer
from kvrepro.script import job

with job(snakemake):
    model = snakemake.wildcards.model
    tokenizer = load_tokenizer(model)
    given = dict(snakemake.params.sources)
    prose, count, length = (given.pop(key, None) for key in ("prose", "word_count", "list_word_tokens"))
    words = corpora.common_words(count) if count else []
    sources = ruler.offline(
        corpora.sentences(prose, "heldout") if prose else [],
        words,
        list_words=draws.of_length(words, length or 0, lambda s: len(tokenizer.encode(s, add_special_tokens=False))),
    )
    examples = ruler.generate(
        snakemake.wildcards.task,
        snakemake.params.number,
        snakemake.params.length,
        tokenizer,
        snakemake.params.seed,
        ruler.with_files(sources, **given),
        chat=registry.entry(model).get("chat", False),
    )
    ruler.write_prompts(examples, snakemake.output[0])
