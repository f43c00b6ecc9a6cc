"""The tasks as data, read from ``tasks.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

_DATA: Mapping[str, Any] = yaml.safe_load(resources.files(__package__).joinpath("tasks.yaml").read_text("utf-8"))

TASKS: tuple[str, ...] = tuple(_DATA)
REGISTERS, AIME25 = (_DATA[name] for name in TASKS)
