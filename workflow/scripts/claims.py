"""The ledger judged by the rows of this tier and of committed results."""

from pathlib import Path

from kvrepro.claims.ledger import claims
from kvrepro.claims.report import judge, markdown, measured
from kvrepro.results import atomic, write_text
from kvrepro.script import job

with job(snakemake):
    tier, ledger = snakemake.config["tier"], claims()
    models = snakemake.params.models
    judged = {}
    for where, roles in models.items():
        rows = [p for p in [*snakemake.input.rows, *snakemake.input.reference] if p.startswith(f"results/{where}/")]
        judged[where] = judge(ledger, measured(where.removeprefix("reference/"), rows, roles))
    with atomic(Path(snakemake.output.csv)) as temporary:
        judged[tier].to_csv(temporary, index=False)
    write_text(markdown(ledger, judged, snakemake.params.lab), snakemake.output.md)
