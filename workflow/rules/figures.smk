# Figures as PDF and PNG, from tidy rows alone; kvrepro.products says which rows each one reads.


for name, figure in FIGURES.items():

    rule:
        name:
            name
        input:
            READS[figure.reads],
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


rule figures:
    input:
        figure_files(HERE),


rule reference:
    input:
        [file for where in REFERENCE for file in [*figure_files(where), *table_files(where)]],
