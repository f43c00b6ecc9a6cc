# Figures as PDF and PNG, from tidy rows alone; kvrepro.products says which rows each one reads. Curves that the authors of
# a paper published are shown as well where a user has fetched them, and never needed.


for name, figure in FIGURES.items():

    rule:
        name:
            name
        input:
            rows=READS[figure.reads],
            published=published_files(figure),
        output:
            pdf=f"figures/{{where}}/{{paper}}/{figure.file or name}{{suffix}}.pdf",
            png=report(
                f"figures/{{where}}/{{paper}}/{figure.file or name}{{suffix}}.png",
                caption=f"../report/{name}.rst",
                category="{paper}",
                subcategory="figures",
                labels={"figure": figure.file or name, "tier": "{where}"},
            ),
        log:
            f"logs/{{where}}/figures/{{paper}}/{name}{{suffix}}.log",
        wildcard_constraints:
            paper="|".join(figure.papers),
        conda:
            "../../envs/conda.yaml"
        params:
            name=name,
            lab=lab_of,
            code=DRAWING,
        script:
            "../scripts/figure.py"


rule published_curves:
    # by hand: snakemake --cores 1 published_curves. It has no output, or a missing file would be fetched for a figure.
    log:
        f"{LOGS}/published_curves.log",
    conda:
        "../../envs/conda.yaml"
    params:
        files={f"{published.FOLDER}/{name}": source for name, source in published.downloads().items()},
    script:
        "../scripts/download.py"


rule figures:
    input:
        figure_files(HERE),


rule reference:
    input:
        [file for where in REFERENCE for file in [*figure_files(where), *table_files(where)]],
