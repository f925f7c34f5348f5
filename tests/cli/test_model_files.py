"""Model files that cannot be used: exit code 3 and one line, for any damage."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def code(tmp_path: Path) -> str:
    (tmp_path / "app.py").write_text("def f():\n    ")
    return f"{tmp_path / 'app.py'}:2:5"


@pytest.fixture
def pair(tiny_pair: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny pair to damage."""
    return Path(shutil.copytree(tiny_pair, tmp_path / "pair"))


@pytest.mark.parametrize("name", ["target.gguf", "drafter.gguf"])
def test_truncated_file_is_refused(name: str, pair: Path, code: str, fails: Callable[..., str]) -> None:
    path, options = pair / name, ("--pair", pair / "target.gguf")
    whole = path.read_bytes()
    for cut in (0, 24, -1):
        path.write_bytes(whole[:cut])
        assert str(path) in fails(3, "complete", code, "--no-daemon", "--threads", 1, *options), cut
    for command in (("chat", "--no-daemon", "-p", "x"), ("bench", "--limit", "1")):
        assert f"{path}: broken GGUF file" in fails(3, *command, *options)


@pytest.mark.system
def test_process_writes_one_line_for_a_broken_drafter(pair: Path, code: str) -> None:
    """Text that llama.cpp writes to the terminal itself shows only in a process."""
    (pair / "drafter.gguf").write_bytes(b"GGUF")
    program = "import sys; from localdflash.cli import main; sys.exit(main())"
    arguments = ("complete", code, "--no-daemon", "--pair", str(pair / "target.gguf"), "--threads", "1")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
