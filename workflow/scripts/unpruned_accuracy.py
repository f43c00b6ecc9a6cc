"""Accuracy of the unpruned model task by task, as model cards give it: on RULER, and on reasoning."""

from kvrepro.analysis.accuracy import accuracy
from kvrepro.results import DENSE, read_rows, write_json
from kvrepro.script import job

with job(snakemake):
    record = {}
    for name, files in sorted(snakemake.input.items(), reverse=True):  # RULER first, of which the mean is
        rows = read_rows([files] if isinstance(files, str) else files)
        whole = accuracy(rows)
        tasks = {task: round(float(accuracy(rows, [task])[DENSE, 1.0].value), 2) for task in whole.tasks}
        record[f"{name}_{snakemake.params.lengths[name]}"] = tasks
        record.setdefault("mean", round(float(whole[DENSE, 1.0].value), 2))
        record.setdefault("items_per_task", whole.items)
    write_json(record, snakemake.output[0])
