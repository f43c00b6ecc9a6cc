# Every claim of the ledger with the published value, ours, and the verdict; committed results of other tiers beside it.


rule claims_of_tier:
    input:
        ledger=sorted(map(str, Path("config/claims").glob("*.yaml"))),
        rows=evidence_files(HERE),
        reference=[row for where in REFERENCE for row in evidence_files(where)]
        + sum(PROFILED.values(), [])
        + [row for place in SCORED for row in scoring_files(place) + shape_files(place)],
    output:
        csv=report(
            f"{RESULTS}/claims.csv",
            caption="../report/claims.rst",
            category="claims",
            labels={"claims": "verdicts", "tier": HERE},
        ),
        provenance=f"{RESULTS}/claims.csv.json",
        md=report(
            f"{RESULTS}/claims.md",
            caption="../report/claims.rst",
            category="claims",
            labels={"claims": "by place", "tier": HERE},
        ),
    log:
        f"{LOGS}/claims.log",
    conda:
        "../../envs/conda.yaml"
    params:
        models={
            where: {paper: e["models"] for paper, e in SETTINGS[where]["experiments"].items()} for where in SETTINGS
        }
        | {place: profiled_models(place) for place in PLACES if place in PROFILED or place in SCORED},
        commands=commands() | {HERE: command(HERE, config["device"]), PROFILE: PROFILE_COMMAND},
        lab=[model for model, entry in ENTRIES.items() if entry.get("lab")],
        code=identity.code([PACKAGE / "claims", PACKAGE / "analysis"]),
    script:
        "../scripts/claims.py"


rule claims:
    input:
        rules.claims_of_tier.output,
