"""The ledger judged by the rows of this tier and of committed results."""

from kvrepro.claims.ledger import claims
from kvrepro.claims.report import judge, markdown, measured
from kvrepro.results import checksums, mixed, write_table, write_text
from kvrepro.script import job

with job(snakemake) as run:
    tier, ledger = snakemake.config["tier"], claims()
    models, given = snakemake.params.models, [*snakemake.input.rows, *snakemake.input.reference]
    judged, told = {}, []
    for where, named in models.items():
        rows = [p for p in given if p.startswith(f"results/{where}/")]
        judged[where] = judge(
            ledger, measured(where.removeprefix("reference/"), rows, named), snakemake.params.commands
        )
        told += [f"{where}: {sentence}" for sentence in mixed(rows)]
    write_table(judged[tier], snakemake.output.csv, run.provenance(inputs=checksums(given)))
    write_text(markdown(ledger, judged, snakemake.params.lab, told), snakemake.output.md)
    print(*told, sep="\n")
