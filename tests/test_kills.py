"""A process that is killed while it writes leaves the old file or none: what labels, estimators, prompts, rows and
tables are written through."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from synthetic_rows import accuracy_rows

from kvrepro import results, tensorfile
from kvrepro.benchmarks.example import Example, Question
from kvrepro.benchmarks.prompts import read_prompts, write_prompts
from kvrepro.errors import InputError


def tensors(path, version):  # of labels, query and gate statistics, estimators, write gates
    tensorfile.write(path, {"u": torch.arange(20_000) + version}, {"kind": "test", "version": version})


def prompts(path, version):
    write_prompts(
        [Example("ruler", "vt", i, version, "", "x" * 500, (Question("?", ("1",), 2),)) for i in range(40)], path
    )


def rows(path, version):  # of accuracy, predictors, observations, gates, budgets, patterns
    results.write_rows(accuracy_rows({"random": 0.5}, items=20).assign(seed=version), path, {"version": version})


def table(path, version):
    results.write_table(accuracy_rows({"random": 0.5}, items=4).assign(seed=version), path, {"version": version})


def version_of(write, path) -> int:
    """The version that a whole file holds."""
    if write is tensors:
        file = tensorfile.TensorFile(path, "test", "write it")
        assert int(file.read("u")[0]) == file.meta["version"]
        return file.meta["version"]
    if write is prompts:
        return read_prompts(path)[-1].seed
    if write is rows:
        return int(results.read_rows(path)["seed"].iloc[-1])
    return int(path.read_text().splitlines()[1].split(",")[path.read_text().split("\n")[0].split(",").index("seed")])


def die_at(size: int) -> None:
    """Let the kernel kill this process when a file that it writes passes ``size`` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def die_before(name: str) -> None:
    """Let a method of Path end this process as a kill does."""
    setattr(Path, name, lambda *_: os._exit(9))


def killed(prepare, given, write, path) -> int:
    """The exit status of a process that prepares its death and writes the second version."""

    def child():
        prepare(given)
        write(path, 2)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("before", [True, False], ids=["old", "none"])
@pytest.mark.parametrize("write", [tensors, prompts, rows, table])
def test_a_kill_leaves_the_old_file_or_none(write, before, tmp_path):
    path = tmp_path / "file.parquet"
    write(path, 1)
    half = path.stat().st_size // 2
    if not before:
        for file in tmp_path.iterdir():
            file.unlink()
    assert killed(die_at, half, write, path) == -signal.SIGXFSZ
    assert killed(die_before, "replace", write, path) == 9
    assert version_of(write, path) == 1 if before else not path.exists()
    write(path, 2)  # what the killed ones left is in nobody's way
    assert version_of(write, path) == 2


def test_rows_whose_provenance_was_not_written_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "file.parquet"
    rows(path, 1)
    monkeypatch.setattr(results, "write_json", lambda *_: os._exit(9))
    assert killed(lambda _: None, None, rows, path) == 9
    with pytest.raises(InputError, match="its content differs from its checksum"):
        results.read_rows(path)
