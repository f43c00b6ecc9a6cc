"""Tidy rows on disk: validated, atomic, checksummed, with provenance."""

from __future__ import annotations

import json
import os

import pandas as pd
import pytest
from synthetic_rows import accuracy_rows, predictor_rows

from kvrepro import results
from kvrepro.errors import InputError
from kvrepro.files import sha256_file
from kvrepro.results import atomic, checksums, config_hash, mixed, provenance, read_rows, valid, write_rows


@pytest.fixture
def rows():
    return accuracy_rows({"random": 0.5}, tasks=["vt"], items=4)


def test_rows_come_back_as_they_were_written(tmp_path, rows):
    path = tmp_path / "a" / "rows.parquet"
    write_rows(rows, path, {"hardware": "none"})
    back = read_rows(path)
    assert len(back) == len(rows) and list(back["value"]) == list(rows["value"])
    sidecar = json.loads((tmp_path / "a" / "rows.parquet.json").read_text())
    assert sidecar["rows"] == len(rows) and sidecar["hardware"] == "none"
    assert sorted(p.name for p in path.parent.iterdir()) == ["rows.parquet", "rows.parquet.json"]


def test_several_files_are_joined(tmp_path, rows):
    for name, part in (("a", rows), ("b", predictor_rows(documents=2))):
        write_rows(part, tmp_path / name, {})
    assert set(read_rows([tmp_path / "a", tmp_path / "b"])["experiment"]) >= {"ruler", "predictors"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0.0}, "budget"),
        ({"budget": 1.2}, "budget"),
        ({"paper": "another"}, "paper"),
        ({"finish_reason": "stop"}, "finish_reason"),
        ({"token_sha256": "abc"}, "token_sha256"),
        ({"kept_entries": 0}, "kept_entries"),
    ],
)
def test_a_wrong_column_is_named_and_nothing_is_written(tmp_path, rows, change, message):
    with pytest.raises(InputError, match=message):
        write_rows(rows.assign(**change), tmp_path / "rows.parquet", {})
    assert list(tmp_path.iterdir()) == []


def test_no_rows_are_an_error(tmp_path, rows):
    with pytest.raises(InputError, match="no rows to write"):
        write_rows(rows[:0], tmp_path / "rows.parquet", {})
    with pytest.raises(InputError, match="no result files"):
        read_rows([])


@pytest.mark.parametrize("damage", ["truncate", "change", "empty", "sidecar", "list"])
def test_damage_is_noticed(tmp_path, rows, damage):
    path = tmp_path / "rows.parquet"
    write_rows(rows, path, {})
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "change":
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        (tmp_path / "rows.parquet.json").write_text("{" if damage == "sidecar" else "[]")
    with pytest.raises(InputError, match=r"rows\.parquet is truncated or corrupt"):
        read_rows(path)


def test_rows_of_different_artefacts_are_told_in_one_sentence(tmp_path, rows):
    made, other, paths = tmp_path / "estimators", tmp_path / "gates", [tmp_path / f"{task}.parquet" for task in "abc"]
    other.write_text("the same for all")
    for path, content in zip(paths, ("first", "first", "second"), strict=True):
        made.write_text(content)
        write_rows(rows, path, {"inputs": checksums([made, other])})
    write_rows(rows, tmp_path / "d.parquet", {})  # of a commit that noted no inputs
    assert checksums([paths[0], made]) == {str(p): sha256_file(p) for p in (paths[0], made)}
    assert mixed([*paths[:2], tmp_path / "d.parquet"]) == []
    (sentence,) = mixed(paths)
    assert sentence.startswith(f"{made} was not the same file for all rows: {paths[0]} has ")
    assert f", but {paths[2]} has {sha256_file(made)[:8]}; delete" in sentence


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.parquet.* is missing; run the workflow"):
        read_rows(tmp_path / "none.parquet")


def test_a_kill_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "text"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["text"]


def test_valid_leaves_out_marked_rows_only():
    frame = pd.DataFrame({"value": [1, 2, 3], "ok": [True, False, None]})
    assert list(valid(frame)["value"]) == [1, 3]
    assert len(valid(frame.drop(columns="ok"))) == 3


def test_provenance_says_where_a_result_comes_from():
    record = provenance({"seed": 1}, rule="test")
    assert {"made", "commit", "config", "python", "packages", "hardware", "peak_rss_mib", "rule"} <= set(record)
    assert record["packages"]["torch"] and "CPU cores" in record["hardware"]
    assert record["config"] == config_hash({"seed": 1}) != config_hash({"seed": 2})
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})


def test_a_result_that_comes_out_the_same_keeps_its_record(tmp_path, rows):
    def record(frame, made, commit="a", inputs="x", **params):
        about = {"made": made, "commit": commit, "packages": {"torch": made}, "rule": "r", "inputs": {"f": inputs}}
        write_rows(frame, tmp_path / "rows", about | {"params": params, "params_hash": config_hash(params)})
        results.write_table(pd.DataFrame({"x": [len(frame)]}), tmp_path / "t", about | {"params": params})
        return tuple(json.loads((tmp_path / f"{name}.json").read_text())["made"] for name in ("rows", "t"))

    assert record(rows, "first", code="1", name="n") == ("first", "first")
    assert record(rows, "second", "b", code="2", name="n") == ("first", "first")
    assert record(rows, "third", inputs="y", code="2", name="n") == ("third", "third")
    assert record(rows, "fourth", inputs="y", code="2", name="m") == ("fourth", "fourth")
    assert record(rows[:-1], "fifth", inputs="y", code="2", name="m") == ("fifth", "fifth")
    (tmp_path / "t.json").write_text("[]")
    (tmp_path / "rows.json").write_text((tmp_path / "rows.json").read_text().replace('"commit": "a",', ""))
    assert record(rows[:-1], "sixth", inputs="y", code="2", name="m") == ("sixth", "sixth")


def test_json_keeps_its_keys(tmp_path):
    results.write_json({"b": 1, "a": [2]}, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == {"b": 1, "a": [2]}
