"""The one exception for bad input, the sentence for an unknown name, and how a command line tells of either."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


class InputError(ValueError):
    """Bad input from the user: its message is one sentence that says what is wrong and what to do."""


def unknown(kind: str, name: object, allowed: Iterable[str], where: str) -> InputError:
    """An InputError for a name that is not in ``allowed``; names the key, the nearest match and what is allowed.

    ``kind`` is the noun ("eviction method"), ``where`` the key or file the name was read from.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"{where}: {kind} {name!r} is unknown; {hint}allowed: {', '.join(names) or 'none'}.")


def command_line(main: Callable[[], None]) -> None:
    """Run ``main``; bad input, or a file that cannot be read or written, ends it with one sentence and status 1."""
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
    except OSError as error:
        if error.filename is None:
            raise
        raise SystemExit(f"error: {error.filename}: {error.strerror}; give another path or make it usable.") from None
