"""Files that are fetched with a checksum: what is kept, what is refused, and what is left behind."""

from __future__ import annotations

import hashlib

import pytest

from kvrepro.benchmarks.helmet.definitions import DOWNLOADS
from kvrepro.downloads import fetch
from kvrepro.errors import InputError


def source(path, content: bytes = b"text") -> dict[str, str]:
    return {"url": path.as_uri(), "sha256": hashlib.sha256(content).hexdigest()}


def test_files_are_fetched_once(tmp_path):
    origin = tmp_path / "origin"
    origin.write_bytes(b"text")
    (path,) = fetch({f"{tmp_path}/data/a/b.csv": source(origin)})
    assert path == tmp_path / "data/a/b.csv" and path.read_bytes() == b"text"
    origin.unlink()
    assert fetch({f"{tmp_path}/data/a/b.csv": source(origin)}) == [path]


def test_another_content_is_refused_and_leaves_nothing(tmp_path):
    origin = tmp_path / "origin"
    origin.write_bytes(b"other")
    with pytest.raises(InputError, match="look for the pinned version"):
        fetch({f"{tmp_path}/data/b.csv": source(origin)})
    assert list((tmp_path / "data").iterdir()) == []
    (tmp_path / "data/b.csv").write_bytes(b"broken")  # of an earlier time
    origin.write_bytes(b"text")
    assert fetch({f"{tmp_path}/data/b.csv": source(origin)})[0].read_bytes() == b"text"


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"cannot be fetched .* yourself"):
        fetch({f"{tmp_path}/data/b.csv": source(tmp_path / "none")})


def test_pinned_files_name_their_commit_and_licence():
    for entry in DOWNLOADS.values():
        assert (
            len(entry["sha256"]) == 64 and entry["licence"] and any(len(part) == 40 for part in entry["url"].split("/"))
        )
