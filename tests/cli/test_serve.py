"""`serve`: refused addresses and keys, `--stop` and `--install-unit`."""

import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import UsageError
from localdflash.base.files import paths
from localdflash.cli import serve, systemd_unit
from localdflash.server.tcp import load_or_create_key, read_key
from tests.support import daemons

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


def test_a_daemon_is_stopped_although_the_settings_are_wrong(run: Callable[..., Any]) -> None:
    file = paths.config_folder() / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("modle = 3\n")
    done = run("serve", "--stop")
    assert (done.code, done.err.splitlines()[-1]) == (0, "no daemon is running")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "127.0.0.1.evil.org"])
def test_public_address_needs_i_know(host: str, fails: Callable[..., str]) -> None:
    message = fails(2, "serve", "--port", 0, "--host", host)
    assert message.startswith(f"--host {host}: ")
    assert "--i-know" in message
    assert not paths.key_file().exists()
    assert not paths.runtime_folder().exists()


def test_addresses_that_are_allowed_have_a_key() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert serve._tcp(host, 0, False).host == host
    tcp = serve._tcp("0.0.0.0", 0, True)
    assert tcp.key == paths.key_file().read_text().strip()
    assert {"localhost", "127.0.0.1", "0.0.0.0"} <= set(tcp.hosts)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_readable_key_file_is_refused(mode: int, fails: Callable[..., str]) -> None:
    load_or_create_key(paths.key_file())
    paths.key_file().chmod(mode)
    assert fails(2, "serve", "--port", 0).startswith(f"{paths.key_file()}: ")


def test_key_is_private_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_or_create_key(paths.key_file())
    assert load_or_create_key(paths.key_file()) == read_key(paths.key_file()) == first
    assert stat.S_IMODE(paths.key_file().stat().st_mode) == 0o600
    assert [path.name for path in paths.key_file().parent.iterdir()] == [paths.key_file().name]
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as in a process that looked before it was made
    assert load_or_create_key(paths.key_file()) == first


def test_bad_key_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for data in (b"", b"two\nlines", b"\xff\xfe"):
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(UsageError, match="key"):
            load_or_create_key(path)
    for missing, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=reason):
            read_key(missing)


@pytest.mark.system
@pytest.mark.usefixtures("short_home")
def test_serve_stop(run: Callable[..., Any]) -> None:
    without_daemon = run("serve", "--stop")
    process = daemons.start()
    stopped = run("serve", "--stop")
    assert process.wait(10) == 0
    assert (without_daemon.code, without_daemon.out, stopped.code, stopped.out) == (0, "", 0, "")
    assert without_daemon.err != stopped.err


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the unit, in a folder that does not exist yet."""
    if sys.platform != "linux":
        pytest.skip("no systemd here")
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


def test_different_unit_file_is_not_overwritten(file: Path, run: Callable[..., Any], fails: Callable[..., str]) -> None:
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
