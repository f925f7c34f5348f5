"""`serve --install-unit`: the unit of this Python, and never over another file."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.cli import systemd_unit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the unit, in a folder that does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "systemd" / "user" / "localdflash.service"


def test_the_unit_runs_this_python_and_systemd_accepts_it(
    file: Path, home: Path, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("serve", "--install-unit")
    assert (done.code, done.out.splitlines()) == (0, [*systemd_unit.ENABLE])
    assert str(file) in done.err
    lines = file.read_text().splitlines()
    (started,) = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    words = shlex.split(started)
    assert (words[0], words[-1]) == (sys.executable, "serve")
    version = subprocess.run([*words[:-1], "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("localdflash")
    assert f"Environment=LOCALDFLASH_HOME={home}" in lines
    if program := shutil.which("systemd-analyze"):
        (tmp_path / "run").mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
        checked = subprocess.run([program, "--user", "verify", str(file)], capture_output=True, text=True, check=False)
        assert file.name not in checked.stderr


def test_a_different_file_is_left_alone(file: Path, run: Callable[..., Any], fails: Callable[..., str]) -> None:
    run("serve", "--install-unit")
    text = file.read_text()
    assert run("serve", "--install-unit").code == 0  # the same again
    file.write_text("mine")
    assert fails(1, "serve", "--install-unit") == f"{file}: another unit has this name; remove it and try again"
    assert file.read_text() == "mine" != text


def test_other_options_and_other_systems_are_refused(
    file: Path, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "config.toml" in fails(2, "serve", "--install-unit", "--port", "8012")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert "Linux" in fails(2, "serve", "--install-unit")
    assert not file.exists()


def test_words_are_quoted_as_systemd_reads_them() -> None:
    text = systemd_unit.unit(["/a b/50%", "$x", 'say "\\"'], {"HOME_OF": "/$x/50% b"})
    assert 'ExecStart="/a b/50%%" $$x "say \\"\\\\\\""' in text
    assert 'Environment="HOME_OF=/$x/50%% b"' in text  # $ has no meaning there
