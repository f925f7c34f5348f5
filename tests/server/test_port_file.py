"""The transport without Unix sockets: a port and a key in a file, which counts only while its writer has it locked."""

import os
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from localdflash.base.errors import EngineGone, LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.server import port_file
from localdflash.server.address import Address
from localdflash.server.client import Client, find
from localdflash.server.sockets import is_listening, lifetime, local, located, other
from tests.support.daemons import DROPPED_SOCKET, begin, killed, said, start, until

pytestmark = [
    pytest.mark.usefixtures("short_home"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]


@pytest.fixture(autouse=True)
def by_tcp(short_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", "tcp")
    paths.create_private(paths.runtime_folder())


@pytest.fixture
def path() -> Path:
    return paths.engine_socket()


# The file


def test_it_holds_the_port_and_a_key_for_its_user_alone(path: Path) -> None:
    with port_file.listening(path) as (listener, port, _):
        assert listener.getsockname() == ("127.0.0.1", port.number)
        assert port_file.read(path) == port
        assert path.read_text() == f"{port.number}\n{port.key}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(port.key) == 43
    assert not path.exists()


def test_every_start_has_a_key_of_its_own(path: Path) -> None:
    keys = set()
    for _ in range(3):
        with port_file.listening(path) as (_, port, _):
            keys.add(port.key)
    assert len(keys) == 3


def test_a_file_that_nobody_has_locked_is_nobodys(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as imposter:
        path.write_text(f"{imposter.getsockname()[1]}\n{'k' * 43}\n")
        path.chmod(0o600)
        assert port_file.read(path) is None
        assert not is_listening(path)
        with pytest.raises(EngineGone, match="cannot be reached: Connection refused"):
            Client(Address(path)).get("/ps")
        imposter.settimeout(0.1)
        with pytest.raises(TimeoutError):  # not even a connection came
            imposter.accept()


def test_the_lock_ends_with_the_process_that_was_killed(path: Path) -> None:
    process = start()
    assert find()
    killed(process)
    held = port_file._CONTENT.fullmatch(path.read_bytes())
    assert held
    with socket.create_server(("127.0.0.1", int(held[1]))) as imposter:  # who takes the port gets nothing
        assert find() is None
        imposter.settimeout(0.1)
        with pytest.raises(TimeoutError):
            imposter.accept()
    second = start()
    client = find()
    assert client
    assert client.get("/ps")["pid"] == second.pid


def test_many_may_look_at_once_and_none_takes_another_for_the_writer(path: Path) -> None:
    path.write_text(f"1\n{'k' * 43}\n")
    path.chmod(0o600)
    looking = os.open(path, os.O_RDONLY)
    from localdflash.base.system import file_lock

    assert file_lock.take(looking, shared=True)
    assert port_file.read(path) is None
    os.close(looking)


@pytest.mark.parametrize(
    "content", ["", "1", "1\nk\n", "0\n{key}\n", "99999x\n{key}\n", "1\n{key}", "1\n{key}\nmore\n", "\0" * 200]
)
def test_anything_else_in_a_locked_file_is_no_port(content: str, path: Path) -> None:
    from localdflash.base.system import file_lock

    path.write_text(content.format(key="k" * 43))
    path.chmod(0o600)
    held = os.open(path, os.O_RDWR)
    assert file_lock.take(held)
    assert port_file.read(path) is None
    os.close(held)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_may_read_is_refused(mode: int, path: Path) -> None:
    with port_file.listening(path):
        path.chmod(mode)
        with pytest.raises(LocaldflashError, match="others may read this key"):
            port_file.read(path)


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    with port_file.listening(tmp_path / "elsewhere.tcp"):
        path.symlink_to(tmp_path / "elsewhere.tcp")
        assert not is_listening(path)


def test_what_lies_in_its_place_is_replaced(path: Path) -> None:
    path.write_text("left")
    path.chmod(0o644)
    assert port_file.read(path) is None
    with port_file.listening(path) as (_, port, _):
        assert port_file.read(path) == port
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_is_one_line(short_home: Path) -> None:
    nowhere = port_file.listening(short_home / "missing" / "engine.tcp")
    with (
        pytest.raises(LocaldflashError, match="cannot listen: No such file or directory; set LOCALDFLASH_HOME"),
        nowhere,
    ):
        pass


def test_who_withdraws_is_not_found_but_still_connected(path: Path) -> None:
    with local(path) as own:
        with socket.create_connection(own.listener.getsockname()) as connection:
            own.withdraw()
            assert not path.exists()
            assert not is_listening(path)
            accepted, _ = own.listener.accept()
            accepted.sendall(b"x")
            assert connection.recv(1) == b"x"
            accepted.close()
        own.withdraw()


def test_an_address_is_the_port_of_now(path: Path) -> None:
    for _ in range(2):
        with local(path) as own:
            found = located(Address(path))
            assert (found.host, found.port, found.key) == (*own.listener.getsockname(), own.key)
            assert found.place == "the engine"
    with pytest.raises(OSError, match="No such file"):
        located(Address(path))


# The daemon behind it


def test_every_request_needs_the_key() -> None:
    start()
    port = port_file.read(paths.engine_socket())
    assert port
    with httpx2.Client(base_url=f"http://127.0.0.1:{port.number}", trust_env=False) as http:
        for method, target in (("GET", "/health"), ("GET", "/ps"), ("GET", "/v1/models"), ("POST", "/stop")):
            assert http.request(method, target).status_code == 401
            for wrong in (port.key[:-1], port.key + "x", port.key.swapcase()):
                headers = {"Authorization": f"Bearer {wrong}"}
                assert http.request(method, target, headers=headers).status_code == 401
        right = {"Authorization": f"Bearer {port.key}"}
        assert http.get("/health", headers=right).json()["status"] == "ok"
        assert http.get("/ps", headers={**right, "Origin": "http://evil.example"}).status_code == 403
        assert http.get("/ps", headers={**right, "Host": "evil.example"}).status_code == 421
        assert http.post("/stop", headers=right, json={}).status_code == 200
    until(lambda: find() is None)


def test_it_listens_on_this_machine_alone() -> None:
    import psutil

    process = start()
    (listens,) = [one for one in psutil.Process(process.pid).net_connections("inet") if one.status == "LISTEN"]
    assert listens.laddr[0] == "127.0.0.1"


def test_it_says_where_it_listens_and_how_to_try_it() -> None:
    process = start()
    assert process.stderr
    line = process.stderr.readline()
    port = port_file.read(paths.engine_socket())
    assert port
    assert line.startswith(f"listening on http://127.0.0.1:{port.number}, key in {paths.engine_socket()}: curl ")
    assert port.key not in line
    command = line.partition(": curl ")[2]
    asks = "from sys import argv; from urllib.request import *; name, value = argv[2].split(': ');"
    asks += "print(urlopen(Request(argv[3], headers={name: value})).status)"
    told = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -c {shlex.quote(asks)} {command}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "200\n"


def test_beside_it_there_may_be_a_port_for_other_programs_with_a_key_of_its_own() -> None:
    start("--port", "0")
    own = port_file.read(paths.engine_socket())
    assert own
    assert paths.key_file().read_text().strip() != own.key
    client = find()
    assert client
    assert client.get("/v1/models")["data"][0]["id"] == "embedded"


# The two transports


def test_an_engine_that_listens_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    process = start()
    by_port = paths.engine_socket()
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", "unix")
    assert find() is None
    code, lines = said(begin())
    assert code == 1
    assert lines == [
        f"localdflash: an engine is running already, at {by_port}: stop it with `LOCALDFLASH_TRANSPORT=tcp localdflash"
        " serve --stop`, or unset LOCALDFLASH_TRANSPORT"
    ]
    assert process.poll() is None


def test_one_engine_has_one_lock_by_either_transport(path: Path) -> None:
    assert other(other(path)) == path
    with lifetime(path):
        from filelock import Timeout

        from localdflash.base.system.file_lock import process_lock
        from localdflash.server.sockets import lock_of

        with pytest.raises(Timeout), process_lock(lock_of(other(path))):
            pass


def test_a_long_path_is_no_trouble(short_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_HOME", str(short_home / ("x" * 120)))
    process = start()
    assert find()
    process.terminate()
    assert said(process)[0] == 0
    assert not paths.engine_socket().exists()


@pytest.mark.parametrize("value", ["TCP", "pigeon", " tcp"])
def test_a_wrong_value_is_one_line(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_TRANSPORT", value)
    with pytest.raises(UsageError, match=rf"^LOCALDFLASH_TRANSPORT={value!r}: choose unix or tcp$"):
        paths.engine_socket()
    assert said(begin()) == (2, [f"localdflash: LOCALDFLASH_TRANSPORT={value!r}: choose unix or tcp"])
