"""Write gates of one model for every lambda in one file, and all their rows in another."""

import json
from pathlib import Path

from kvrepro import results
from kvrepro.models.gate import join_gates
from kvrepro.script import job

with job(snakemake) as run:
    join_gates(snakemake.input.gates, snakemake.output.gates)
    made = [json.loads(Path(path).read_text()) for path in snakemake.input.provenance]
    about = {key: ", ".join(sorted({part[key] for part in made})) for key in ("hardware", "weights")}
    provenance = run.provenance(inputs=results.checksums(snakemake.input.rows), **about)
    results.write_rows(results.read_rows(snakemake.input.rows), snakemake.output.rows, provenance)
