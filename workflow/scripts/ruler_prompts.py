"""Items of all RULER tasks in a model's tokenizer, and their manifest."""

from tqdm import tqdm

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.ruler import draws
from kvrepro.data import corpora
from kvrepro.models import registry
from kvrepro.models.tokenizer import load_tokenizer
from kvrepro.script import job

with job(snakemake):
    model, params = snakemake.wildcards.model, snakemake.params
    tokenizer, chat = load_tokenizer(model), registry.entry(model).get("chat", False)
    given = dict(params.sources)
    prose, count, length = (given.pop(key, None) for key in ("prose", "word_count", "list_word_tokens"))
    words = corpora.common_words(count) if count else []
    offline = ruler.offline(
        corpora.sentences(prose, "heldout") if prose else [],
        words,
        list_words=draws.of_length(words, length or 0, lambda s: len(tokenizer.encode(s, add_special_tokens=False))),
    )
    sources = ruler.with_files(offline, **given)
    made = []
    for task, path in zip(tqdm(params.tasks), snakemake.output.prompts, strict=True):
        examples = ruler.generate(task, params.number, params.length, tokenizer, params.seed, sources, chat=chat)
        ruler.write_prompts(examples, path)
        made += examples
    ruler.write_manifest(made, tokenizer, snakemake.output.manifest, chat)
