"""Files from where they are published, each with a pinned checksum."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from kvrepro.errors import InputError
from kvrepro.files import atomic, sha256_file


def fetch(files: Mapping[str, Mapping[str, str]]) -> list[Path]:
    """The paths of ``files``, which gives "url" and "sha256" by path. What is there already is left alone.

    Raises InputError for a file that cannot be fetched or has another content; then none is left in its place.
    """
    found = []
    for name, source in files.items():
        path = Path(name)
        if not (path.is_file() and sha256_file(path) == source["sha256"]):
            _fetch(source, path)
        found.append(path)
    return found


def _fetch(source: Mapping[str, str], path: Path) -> None:
    with atomic(path) as temporary:
        try:
            with urllib.request.urlopen(source["url"], timeout=60) as response, temporary.open("wb") as out:
                shutil.copyfileobj(response, out)
        except OSError as error:
            raise InputError(
                f"{source['url']}: cannot be fetched ({error}); put the file at {path} yourself."
            ) from error
        if (found := sha256_file(temporary)) != source["sha256"]:
            raise InputError(
                f"{source['url']}: has the SHA-256 {found} and not {source['sha256']}; look for the pinned version."
            )
