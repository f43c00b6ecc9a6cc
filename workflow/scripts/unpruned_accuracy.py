"""Accuracy of the unpruned model task by task, as model cards give it."""

from kvrepro.analysis.accuracy import accuracy
from kvrepro.results import DENSE, read_rows, write_json
from kvrepro.script import job

with job(snakemake):
    rows = read_rows(snakemake.input)
    whole = accuracy(rows)
    tasks = {task: round(float(accuracy(rows, [task])[DENSE, 1.0].value), 2) for task in whole.tasks}
    record = {f"ruler_{snakemake.params.length}": tasks, "mean": round(float(whole[DENSE, 1.0].value), 2)}
    write_json(record | {"items_per_task": whole.items}, snakemake.output[0])
