"""Weights that come inside a Python package: taken out by name and checksum, converted once."""

from __future__ import annotations

import hashlib
import zipfile

import pytest

from kvrepro.errors import InputError
from kvrepro.models import registry, wheel


@pytest.fixture
def package(tmp_path):
    path = tmp_path / "some-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some/weights.gguf", b"weights")
    return path


def test_weights_are_taken_out_by_checksum(package, tmp_path):
    good = hashlib.sha256(b"weights").hexdigest()
    assert wheel.weights(package, "some/weights.gguf", good, tmp_path).read_bytes() == b"weights"
    with pytest.raises(InputError, match="not the file the registry records"):
        wheel.weights(package, "some/weights.gguf", "0" * 64, tmp_path)
    with pytest.raises(InputError, match=r"has no some/other\.gguf"):
        wheel.weights(package, "some/other.gguf", good, tmp_path)
    package.write_bytes(b"no zip")
    with pytest.raises(InputError, match="is damaged"):
        wheel.weights(package, "some/weights.gguf", good, tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        wheel.weights(tmp_path / "none.whl", "some/weights.gguf", good, tmp_path)


def test_a_wheel_is_asked_of_pip(tmp_path, monkeypatch):
    def run(command, **kwargs):
        assert command[-1] == "some==1.0" and "--no-deps" in command
        (tmp_path / "some-1.0.whl").touch()
        return wheel.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheel.subprocess, "run", run)
    assert wheel.download("some", "1.0", tmp_path).name == "some-1.0.whl"


def test_no_network_is_one_sentence(tmp_path, monkeypatch):
    done = wheel.subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: no matching distribution\n")
    monkeypatch.setattr(wheel.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(InputError, match=r"some==1.0 cannot be downloaded \(ERROR: no matching distribution\)"):
        wheel.download("some", "1.0", tmp_path)


def test_models_without_a_wheel_and_machines_without_gguf_are_told(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="does not come in a wheel"):
        wheel.main(["lab-dense"])
    monkeypatch.setattr(wheel, "find_spec", lambda name: None)
    spec = registry.entry("SmolLM2-135M-Instruct")
    with pytest.raises(InputError, match="install kvrepro with the extra gguf"):
        wheel.convert(tmp_path / "x.gguf", tmp_path / "out", spec, "SmolLM2-135M-Instruct")
    assert not (tmp_path / "out").exists()
