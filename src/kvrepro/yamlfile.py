"""YAML files that hold a mapping: configs, recipes, schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kvrepro.errors import InputError


class StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # in C where it is: every job reads the config
    """Refuses a key that is given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """A mapping, after a look at its keys."""
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(problem=f"{key} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def mapping(path: str | Path, advice: str) -> dict[str, Any]:
    """The content of a file, empty where the file is. InputError, which ends with ``advice`` where there is no mapping,
    when it cannot be read."""
    try:
        content = yaml.load(Path(path).read_text("utf-8"), StrictLoader)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {advice}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())}); correct it.") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no mapping of keys to values; {advice}.")
    return content
