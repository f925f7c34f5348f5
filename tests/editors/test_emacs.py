"""Emacs with eglot and `localdflash lsp`: the text that completion inserts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.editors.conftest import installed
from tests.support import daemons

pytestmark = pytest.mark.editors

FOLDER = Path(__file__).parent
SERVER = [sys.executable, "-P", "-c", daemons.PROGRAM, "lsp"]
COMPLETE = "C-M-i"
KNOWN = '''import os


def add(first, second):
    """Return the sum."""
    total = first + second
    return total


print(add(1, 2))
'''
BODY = '    """Return the sum."""\n    total = first + second\n    return total\n'
TOTAL = KNOWN.replace("first + second\n", "\n")

Complete = Callable[..., bytes]


@pytest.fixture
def complete(engine: None, tmp_path: Path) -> Complete:
    """Edit a file: move behind a text in it, press keys, and return the saved file."""

    def run(text: str, place: str, keys: str) -> bytes:
        file = tmp_path / "project" / "edited.py"
        (tmp_path / "project" / ".git").mkdir(parents=True)
        file.write_bytes(text.encode())
        server = f"'({' '.join(map(json.dumps, SERVER))})"
        call = f"(scene {server} {json.dumps(str(file))} 'python-mode {json.dumps(place)} {json.dumps(keys)})"
        done = subprocess.run(
            [installed("emacs"), "-Q", "--batch", "--load", FOLDER / "emacs.el", "--eval", call],
            env=os.environ | {"HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return file.read_bytes()

    return run


def test_several_lines_keep_their_indentation(complete: Complete) -> None:
    hole = KNOWN.replace(BODY, "\n")
    assert complete(hole, "second):\n", f"SPC SPC SPC SPC {COMPLETE}") == KNOWN.encode()


def test_one_undo_takes_it_back(complete: Complete) -> None:
    typed = TOTAL.replace("total = \n", "total = fi\n")
    assert complete(typed, "total = fi", f"{COMPLETE} C-x u") == typed.encode()
