"""Fake Hugging Face hub on loopback, with correct and faulty responses."""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

COMMIT = "c0ffee" * 6 + "c0ff"
CHUNK = 1 << 16


@dataclass
class File:
    """File on the hub; fields that are None have their correct values."""

    data: bytes
    large: bool = True  # in LFS: identified by SHA-256, served from another address
    digest: str | None = None  # hash reported by the hub
    size: int | None = None  # size reported by the hub
    stop_after: int | None = None  # bytes of each answer before the connection drops
    error: tuple[int, str] | None = None  # status and X-Error-Code
    commit: str | None = COMMIT
    chunks: str | None = None  # its hash in the chunk store

    def etag(self) -> str:
        if self.digest is not None:
            return self.digest
        if self.large:
            return hashlib.sha256(self.data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()


@dataclass
class FakeHub:
    """Files by owner/name/file. `requests` are the received ones: method, path, Range."""

    files: dict[str, File] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    listing: bytes | None = None  # the answer for every list of files; None: lists `files`
    tokens_on_cdn: list[str] = field(default_factory=list)
    sent: Callable[[int], None] = lambda _count: None  # called during an answer with the number of bytes sent

    def __enter__(self) -> Self:
        self._servers = [_server(self, _Hub), _server(self, _Cdn)]
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def cdn(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def downloads(self, name: str) -> list[str | None]:
        """Return the ranges of all answers with bytes of a file."""
        return [span for method, path, span in self.requests if method == "GET" and path == f"/blob/{name}"]


@contextmanager
def hub_for_tests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Yield a hub for huggingface_hub in this process, with an empty cache and no account."""
    from huggingface_hub import close_session, constants

    with FakeHub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hf-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("time.sleep", lambda _seconds: None)  # between the library's attempts
        yield hub
        close_session()


def environment(hub: FakeHub, folder: Path) -> dict[str, str]:
    """Return the environment of a process that uses the hub."""
    private = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf-home"), "HF_HUB_CACHE": str(folder / "hf-cache")}
    return {**os.environ, **private, "OMP_NUM_THREADS": "1"}


def in_hub_cache(folder: Path, name: str, data: bytes, digest: str, commit: str = COMMIT) -> Path:
    """Put a file into the hub's cache (blob, snapshot link, ref); return the blob's path."""
    owner, repository, path = name.split("/", 2)
    root = folder / "hf-cache" / f"models--{owner}--{repository}"
    blob, link, ref = root / "blobs" / digest, root / "snapshots" / commit / path, root / "refs" / "main"
    for place in (blob, link, ref):
        place.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    link.symlink_to(blob)
    ref.write_text(commit)
    return blob


def _server(hub: FakeHub, handler: type["_Handler"]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        raise NotImplementedError

    def log_message(self, *_: object) -> None:
        pass

    def head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send(self, file: File) -> None:
        """Send the bytes of a file, or the requested range of them."""
        span = self.headers.get("Range")
        begin, _, end_of_span = (span or "").removeprefix("bytes=").partition("-")
        first, last = int(begin or 0), int(end_of_span or len(file.data) - 1)
        body = file.data[first : last + 1]
        place = {"Content_Range": f"bytes {first}-{last}/{len(file.data)}"} if span else {}
        self.head(206 if span else 200, Content_Length=str(len(body)), **place)
        if self.command == "HEAD":
            return
        end = len(body) if file.stop_after is None else min(len(body), file.stop_after)
        for start in range(0, end, CHUNK):
            try:
                self.wfile.write(body[start : min(start + CHUNK, end)])
            except OSError:  # the client is gone
                self.close_connection = True
                return
            self.hub.sent(min(start + CHUNK, end))
        self.close_connection = self.close_connection or end < len(body)


class _Hub(_Handler):
    """/owner/name/resolve/REVISION/FILE, and the list of a repository's files."""

    def answer(self) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.path.startswith("/api/models/"):
            self.list_files("/".join(self.path.removeprefix("/api/models/").split("/")[:2]))
            return
        owner, name, _resolve, _revision, path = self.path.lstrip("/").split("/", 4)
        file = self.hub.files.get(f"{owner}/{name}/{path}")
        if file is None:
            self.head(404, X_Error_Code="EntryNotFound", Content_Length="0")
        elif file.error:
            self.head(file.error[0], X_Error_Code=file.error[1], Content_Length="0")
        elif file.large:
            self.head(
                302, Location=f"{self.hub.cdn}/blob/{owner}/{name}/{path}", Content_Length="0", **self.facts(file)
            )
        else:
            self.head(200, Content_Length=str(len(file.data)), **self.facts(file))
            if self.command == "GET":
                self.wfile.write(file.data)

    def list_files(self, repository: str) -> None:
        """Answer /api/models/owner/name, with or without /revision/REVISION."""
        paths = [path.removeprefix(f"{repository}/") for path in self.hub.files if path.startswith(f"{repository}/")]
        if not paths:
            self.head(404, X_Error_Code="RepoNotFound", Content_Length="0")
            return
        body = self.hub.listing
        if body is None:
            body = json.dumps({"id": repository, "siblings": [{"rfilename": path} for path in paths]}).encode()
        self.head(200, Content_Length=str(len(body)), Content_Type="application/json")
        self.wfile.write(body)

    @staticmethod
    def facts(file: File) -> dict[str, str]:
        size = len(file.data) if file.size is None else file.size
        linked = {"X_Linked_Size": str(size), "X_Linked_ETag": f'"{file.etag()}"'} if file.large else {}
        stored = {"X_Xet_Hash": file.chunks, "X_Xet_Refresh_Route": "/token"} if file.chunks else {}
        named = {"X_Repo_Commit": file.commit} if file.commit else {}
        return {"ETag": f'"{file.etag()}"', **linked, **named, **stored}


class _Cdn(_Handler):
    """/blob/OWNER/NAME/FILE"""

    def answer(self) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        if token := self.headers.get("Authorization"):
            self.hub.tokens_on_cdn.append(token)
        self.send(self.hub.files[self.path.removeprefix("/blob/")])
