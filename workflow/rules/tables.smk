# Tables as CSV and Markdown, from tidy rows alone; kvrepro.products says which rows each one reads.


for name, table in TABLES.items():

    rule:
        name:
            name if "table_" in name else f"table_{name}"
        input:
            rows=READS[table.reads],
            measured=[file for file in table.measured if Path(file).exists()],
        output:
            csv=f"results/{{where}}/tables/{{paper}}/{table.file or name}{{suffix}}.csv",
            provenance=f"results/{{where}}/tables/{{paper}}/{table.file or name}{{suffix}}.csv.json",
            md=report(
                f"results/{{where}}/tables/{{paper}}/{table.file or name}{{suffix}}.md",
                caption="../report/table.rst",
                category="{paper}",
                subcategory="tables",
                labels={"table": table.file or name, "tier": "{where}"},
            ),
        log:
            f"logs/{{where}}/tables/{{paper}}/{table.file or name}{{suffix}}.log",
        wildcard_constraints:
            paper="|".join(table.papers),
        conda:
            "../../envs/conda.yaml"
        params:
            name=name,
            lab=lab_of,
            code=DRAWING,
        script:
            "../scripts/table.py"


rule tables:
    input:
        table_files(HERE),
