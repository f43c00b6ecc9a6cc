"""Accuracy of the unpruned model task by task, as model cards give it."""

from kvrepro.analysis.accuracy import accuracy
from kvrepro.results import read_rows, write_json
from kvrepro.script import job

with job(snakemake):
    rows = read_rows(snakemake.input)
    whole = accuracy(rows)
    tasks = {task: round(float(accuracy(rows, [task])["dense", 1.0].value), 2) for task in whole.tasks}
    record = {f"ruler_{snakemake.params.length}": tasks, "mean": round(float(whole["dense", 1.0].value), 2)}
    write_json(record | {"items_per_task": whole.items}, snakemake.output[0])
