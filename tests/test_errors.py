import errno
from pathlib import Path

import pytest
import torch

from kvrepro.errors import InputError, command_line
from kvrepro.models.loading import usable

SOURCES = Path(__file__).parent.parent / "src/kvrepro"


def fail(error: Exception):
    def main():
        raise error

    return main


def test_a_command_line_ends_with_one_sentence():
    for error, told in (
        (InputError("model 'x' is unknown; name another."), "error: model 'x' is unknown; name another."),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.json"), "error: a.json: No such file; give another path"),
    ):
        with pytest.raises(SystemExit) as ended:
            command_line(fail(error))
        assert str(ended.value).startswith(told) and ended.value.__suppress_context__


def test_a_command_line_that_crashes_shows_where():
    for error in (KeyError("x"), OSError("a socket, not a file")):
        with pytest.raises(type(error)):
            command_line(fail(error))


def test_every_command_line_tells_bad_input_in_one_sentence():
    for file in SOURCES.rglob("*.py"):
        text = file.read_text()
        if "argparse.ArgumentParser" in text:
            assert text.endswith('if __name__ == "__main__":\n    command_line(main)\n'), file


def test_a_device_that_is_not_there():
    assert usable("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="device 'gpu' is unknown; give cpu, cuda or cuda:N"):
        usable("gpu")
