"""Imports between the parts of the package point one way, as the design draws it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kvrepro
from kvrepro.benchmarks.registry import BENCHMARKS

PACKAGE = Path(kvrepro.__file__).parent

#: From the ground up. A part may import from its own layer, as long as no circle arises, and from those below.
LAYERS = [
    {"errors", "files", "downloads", "results", "tensorfile", "yamlfile"},
    {"models", "data", "cache", "kernels"},
    {"methods", "labels", "benchmarks", "estimators"},
    {"training", "evaluate", "profiling", "analysis"},
    {"figures", "tables", "claims", "serving"},
    {"config", "identity", "products", "remembered", "script", "locks", "gpus", "wheels"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(file: Path) -> set[str]:
    """Parts of the package that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: relative import; write kvrepro.<part>"
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        parts = [name.split(".")[1] for name in names if name.startswith("kvrepro.") and name.count(".")]
        found.update(part for part in parts if (PACKAGE / part).exists() or (PACKAGE / f"{part}.py").exists())
    return found


def graph() -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        if (part := part_of(file)) != "__init__":
            edges.setdefault(part, set()).update(imported(file) - {part})
    return edges


def test_every_part_has_a_layer():
    assert set(graph()) - set(RANK) == set()


def test_no_part_imports_from_above():
    wrong = [(part, other) for part, others in graph().items() for other in others if RANK[other] > RANK[part]]
    assert wrong == []


def test_no_circles_between_parts():
    list(TopologicalSorter(graph()).static_order())  # raises CycleError


def test_what_benchmarks_share_knows_none_of_them():
    own = tuple(f"kvrepro.benchmarks.{name}" for name in BENCHMARKS)
    for file in PACKAGE.glob("benchmarks/*.py"):
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [node.module for node in nodes if node.module.startswith(own)], file


@pytest.mark.parametrize("script", sorted(Path("workflow/scripts").glob("*.py")), ids=lambda p: p.stem)
def test_scripts_are_thin(script):
    assert len(script.read_text().splitlines()) <= 40


@pytest.mark.parametrize("module", ["kvrepro.products", "kvrepro.claims.report"])
def test_results_are_drawn_and_judged_without_torch(module):
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)}).returncode
        == 0
    )
