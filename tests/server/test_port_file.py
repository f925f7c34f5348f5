"""Transport without Unix sockets: a file with port and key, valid only while its writer holds the lock."""

import os
import socket
import stat
from pathlib import Path

import pytest

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.base.files import paths
from localdflash.base.system import file_lock
from localdflash.base.system.file_lock import process_lock
from localdflash.server import sockets
from localdflash.server.address import Address
from localdflash.server.client import Client
from localdflash.server.sockets import is_listening, listen_at, lock_of, path_lock, read_port_file, resolve_port_file
from tests.support.daemons import DROPPED_SOCKET

pytestmark = [pytest.mark.usefixtures("short_home"), pytest.mark.filterwarnings(DROPPED_SOCKET)]


@pytest.fixture(autouse=True)
def by_tcp(short_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", "tcp")
    paths.create_private(paths.runtime_folder())


@pytest.fixture
def path() -> Path:
    return paths.daemon_socket()


def test_it_holds_the_port_and_a_key_for_its_user_alone(path: Path, short_home: Path) -> None:
    with listen_at(path) as own:
        port = read_port_file(path)
        assert port
        assert (own.listener.getsockname(), own.key) == (("127.0.0.1", port.port), port.key)
        (short_home / "link").symlink_to(path)
        assert not is_listening(short_home / "link"), "a link is not followed"
        assert path.read_text() == f"{port.port}\n{port.key}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(port.key) == 43
        for mode in (0o640, 0o604):
            path.chmod(mode)
            with pytest.raises(LocaldflashError, match="readable by other users"):
                read_port_file(path)
    assert not path.exists()
    with listen_at(path) as again:
        assert again.key != port.key, "every start has its own"


def test_an_unlocked_port_file_is_ignored(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as imposter:
        path.write_text(f"{imposter.getsockname()[1]}\n{'k' * 43}\n")
        path.chmod(0o600)
        assert read_port_file(path) is None
        assert not is_listening(path)
        with pytest.raises(EngineDisconnect, match="cannot be reached: Connection refused"):
            Client(Address(path)).get("/ps")
        imposter.settimeout(0.1)
        with pytest.raises(TimeoutError):  # not even a connection came
            imposter.accept()


def test_anything_else_in_a_locked_file_is_no_port(path: Path) -> None:
    for content in ["", "1", "1\nk\n", "0\n{key}\n", "99999x\n{key}\n", "1\n{key}", "1\n{key}\nmore\n", "\0" * 200]:
        path.write_text(content.format(key="k" * 43))
        path.chmod(0o600)
        held = os.open(path, os.O_RDWR)
        assert file_lock.try_lock(held)
        assert read_port_file(path) is None
        os.close(held)


def test_a_folder_that_cannot_be_written_is_one_line(short_home: Path) -> None:
    nowhere = listen_at(short_home / "missing" / "engine.tcp")
    with (
        pytest.raises(LocaldflashError, match="cannot listen: No such file or directory; set LOCALDFLASH_HOME"),
        nowhere,
    ):
        pass


def test_a_withdrawn_port_keeps_its_connections(path: Path) -> None:
    with listen_at(path) as own:
        with socket.create_connection(own.listener.getsockname()) as connection:
            own.withdraw()
            assert not path.exists()
            assert not is_listening(path)
            accepted, _ = own.listener.accept()
            accepted.sendall(b"x")
            assert connection.recv(1) == b"x"
            accepted.close()
        own.withdraw()


def test_an_address_follows_the_current_port(path: Path) -> None:
    for _ in range(2):
        with listen_at(path) as own:
            found = resolve_port_file(Address(path))
            assert (found.host, found.port, found.key) == (*own.listener.getsockname(), own.key)
            assert found.display_name == "the daemon"
    with pytest.raises(OSError, match="No such file"):
        resolve_port_file(Address(path))


def test_one_engine_has_one_lock_by_either_transport(path: Path) -> None:
    assert sockets.other_transport_path(sockets.other_transport_path(path)) == path
    with path_lock(path), pytest.raises(TimeoutError), process_lock(lock_of(sockets.other_transport_path(path))):
        pass
