"""What `serve` refuses before it listens anywhere, and how it is stopped."""

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import UsageError
from localdflash.base.files import paths
from localdflash.cli import serve
from localdflash.server.tcp import own_key, read_key
from tests.support import daemons

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "127.0.0.1.evil.org"])
def test_an_address_that_others_can_reach_needs_i_know(host: str, fails: Callable[..., str]) -> None:
    said = fails(2, "serve", "--port", 0, "--host", host)
    assert said.startswith(f"--host {host}: other machines could reach the engine")
    assert said.endswith("add --i-know to have it so")
    assert not paths.key_file().exists()
    assert not paths.runtime_folder().exists()


def test_a_public_address_has_a_key_too() -> None:
    tcp = serve._tcp("0.0.0.0", 0, True)
    assert tcp.key == paths.key_file().read_text().strip()
    assert {"localhost", "127.0.0.1", "0.0.0.0"} <= set(tcp.hosts)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_alone_needs_nothing(host: str) -> None:
    assert serve._tcp(host, 0, False).host == host


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_may_read_is_refused(mode: int, fails: Callable[..., str]) -> None:
    own_key(paths.key_file())
    paths.key_file().chmod(mode)
    said = fails(2, "serve", "--port", 0)
    assert said == f"{paths.key_file()}: others may read this key: remove it for a new one, or chmod 600 it"


def test_a_key_is_made_private_and_kept() -> None:
    first = own_key(paths.key_file())
    assert own_key(paths.key_file()) == read_key(paths.key_file()) == first
    assert stat.S_IMODE(paths.key_file().stat().st_mode) == 0o600
    assert [path.name for path in paths.key_file().parent.iterdir()] == [paths.key_file().name]


@pytest.mark.parametrize("data", [b"", b"two\nlines", b"\xff\xfe"])
def test_what_is_no_key(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="not a key"):
        own_key(path)


def test_a_key_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the key: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot read the key: Is a directory"):
        read_key(tmp_path)


def test_two_that_make_a_key_have_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = own_key(paths.key_file())
    monkeypatch.setattr(Path, "exists", lambda _: False)  # the other one looked before
    assert own_key(paths.key_file()) == first


@pytest.mark.system
@pytest.mark.usefixtures("short_home")
def test_stopping(run: Callable[..., Any]) -> None:
    assert run("serve", "--stop") == (0, "", "No engine is running.\n")
    process = daemons.start()
    assert run("serve", "--stop") == (0, "", "The engine has stopped.\n")
    assert process.wait(10) == 0


@pytest.mark.parametrize("arguments", [("--port", "65536"), ("--idle", "-1")])
def test_values_that_make_no_sense(arguments: tuple[str, ...], fails: Callable[..., str]) -> None:
    assert arguments[0] in fails(2, "serve", *arguments)
