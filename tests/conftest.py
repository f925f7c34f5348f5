"""What every test gets: folders of its own, and no network beyond this machine."""

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LOCALDFLASH_HOME of this test; nothing is there yet."""
    folder = tmp_path / "localdflash-home"
    monkeypatch.setenv("LOCALDFLASH_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, _guarded_method(getattr(socket.socket, name)))
    monkeypatch.setattr(socket, "getaddrinfo", _guarded_lookup(socket.getaddrinfo))


@pytest.fixture
def root() -> Path:
    """The root of the source tree."""
    return ROOT


def _guarded_method(original: Any) -> Any:
    def method(sock: socket.socket, address: Any) -> Any:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            _refuse(address)
        return original(sock, address)

    return method


def _guarded_lookup(original: Any) -> Any:
    def lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host and not _is_local(host):
            _refuse(host)
        return original(host, *args, **kwargs)

    return lookup


def _is_local(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def _refuse(address: Any) -> NoReturn:
    # pytest's own failure is no Exception: code that goes on without a network cannot swallow it.
    pytest.fail(f"a test reached for the network: {address!r}")
