# Patterns of attention in code, and what each head admits of two kinds of contexts (WG-KV §2.3, Appendix H).

PATTERNS = config["patterns"]


def pattern_prompts(wildcards):
    """The items that contexts are taken of, by the name of their kind."""
    taken = {name: context for name, context in PATTERNS["contexts"].items() if "benchmark" in context}
    folder = f"{RESULTS}/prompts/{wildcards.model}"
    return {name: f"{folder}/{context['benchmark']}/{context['task']}.jsonl" for name, context in taken.items()}


def pattern_texts():
    """Identities of the corpora, by their name."""
    entries = [PATTERNS["code"], *(c["corpus"] for c in PATTERNS["contexts"].values() if "corpus" in c)]
    return {documents.name(entry): identity.corpus(entry) for entry in entries}


rule pattern_rows:
    input:
        unpack(pattern_prompts),
        model=model_files,
        gates=rules.write_gates_of_model.output.gates,
    output:
        rows=f"{RESULTS}/patterns/{{model}}.parquet",
        provenance=f"{RESULTS}/patterns/{{model}}.parquet.json",
    log:
        f"{LOGS}/patterns/{{model}}.log",
    benchmark:
        f"{TIMINGS}/patterns/{{model}}.tsv"
    conda:
        "../../envs/conda.yaml"
    threads: config["threads"]
    resources:
        gpu=GPU,
    params:
        settings=PATTERNS,
        texts=pattern_texts() if analysed(HERE, "patterns") else {},
        weights=model_weights,
    script:
        "../scripts/pattern_rows.py"


rule patterns:
    input:
        expand(rules.pattern_rows.output, model=analysed(HERE, "patterns")),
