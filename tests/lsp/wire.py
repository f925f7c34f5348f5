"""LSP as bytes to a real server and back, and the protocol in this process."""

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar
from unittest.mock import Mock

from pygls.lsp.server import LanguageServer

from localdflash.lsp import transport
from localdflash.lsp.framing import MessageReader
from localdflash.lsp.lsp_methods import create_server
from localdflash.lsp.protocol import DocumentProtocol
from localdflash.server.engine_spec import EngineSpec
from tests.support import daemons

PATIENCE = 20.0  # seconds for an answer
Json = dict[str, Any]
T = TypeVar("T")


def framed(message: object) -> bytes:
    return framed_text(json.dumps(message).encode())


def framed_text(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def request(key: object, method: str, params: object = None) -> Json:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


def notification(method: str, params: object = None) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def initialize(*encodings: str, process_id: int | None = None, options: Json | None = None) -> Json:
    capabilities: Json = {"textDocument": {"inlineCompletion": {}}}
    if encodings:
        capabilities["general"] = {"positionEncodings": list(encodings)}
    return {"processId": process_id, "rootUri": None, "capabilities": capabilities, "initializationOptions": options}


def asking(uri: str = "file:///unknown.py", line: int = 0, character: int = 0, trigger: int = 2) -> Json:
    position = {"line": line, "character": character}
    return {"textDocument": {"uri": uri}, "position": position, "context": {"triggerKind": trigger}}


def opening(uri: str, text: str, version: int = 1) -> Json:
    return {"textDocument": {"uri": uri, "languageId": "python", "version": version, "text": text}}


def changing(uri: str, version: int, *changes: Json) -> Json:
    return {"textDocument": {"uri": uri, "version": version}, "contentChanges": list(changes)}


def change(start: tuple[int, int], end: tuple[int, int], text: str) -> Json:
    places = [{"line": line, "character": character} for line, character in (start, end)]
    return {"range": {"start": places[0], "end": places[1]}, "text": text}


class Wire:
    """A client's end of a connection: two descriptors. `others` are messages that were not the awaited answer."""

    def __init__(self, sink: int, source: int) -> None:
        self._sink, self._source = sink, source
        self._reader, self._received = MessageReader(), list[object]()
        self._key = 1000
        self.others: list[Json] = []

    def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._sink, view) :]

    def send(self, *messages: object) -> None:
        self.send_bytes(b"".join(map(framed, messages)))

    def receive(self, seconds: float = PATIENCE) -> Json | None:
        """The next message; None at the end. Fails for anything that is no LSP."""
        while not self._received:
            ready, _, _ = select.select([self._source], [], [], seconds)
            assert ready, "no message in time"
            chunk = os.read(self._source, 1 << 20)
            if not chunk:
                return None
            self._received += self._reader.feed(chunk)
        message: Any = self._received.pop(0)
        assert message["jsonrpc"] == "2.0"
        return message  # type: ignore[no-any-return]

    def answer(self, key: object) -> Json:
        """The answer to a request; `id` null is that to none."""
        for i, message in enumerate(self.others):
            if "method" not in message and message.get("id", "absent") == key:
                return self.others.pop(i)
        while (received := self.receive()) is not None:
            message = received
            if "method" not in message and message.get("id", "absent") == key and type(message["id"]) is type(key):
                return message
            self.others.append(message)
        raise AssertionError(f"the connection ended before the answer to {key!r}")

    def ask(self, method: str, params: object = None) -> Json:
        self._key += 1
        self.send(request(self._key, method, params))
        return self.answer(self._key)

    def begin(self, *encodings: str, **more: Any) -> Json:
        answer = self.ask("initialize", initialize(*encodings, **more))
        self.send(notification("initialized", {}))
        return answer

    def check(self) -> None:
        answer = self.ask("textDocument/inlineCompletion", asking())
        assert answer["result"] is None, answer

    def said(self, method: str = "window/logMessage") -> list[str]:
        """Return and forget the messages of the server so far."""
        told = [message["params"]["message"] for message in self.others if message.get("method") == method]
        self.others.clear()
        return told


class Process(Wire):
    """`localdflash lsp` on pipes."""

    def __init__(self, *arguments: str, program: str = daemons.PROGRAM) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, "lsp", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin
        assert self.process.stdout
        super().__init__(self.process.stdin.fileno(), self.process.stdout.fileno())

    def line(self) -> str:
        """A line from stderr."""
        assert self.process.stderr
        ready, _, _ = select.select([self.process.stderr], [], [], PATIENCE)
        assert ready
        return self.process.stderr.readline().decode()

    def end(self) -> tuple[int, str]:
        """Wait for the end of the process: exit code and what is on stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err.decode()

    def leave(self) -> tuple[int, str]:
        """As an editor does."""
        assert self.ask("shutdown")["result"] is None
        self.send(notification("exit"))
        return self.end()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def serving(*arguments: str, program: str = daemons.PROGRAM) -> Iterator[Process]:
    """A process that is gone afterwards."""
    process = Process(*arguments, program=program)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def connected(address: str | tuple[str, int]) -> Iterator[Wire]:
    """A connection to a server that listens."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.connect(address)
        yield Wire(connection.fileno(), connection.fileno())


@contextmanager
def in_thread(serving: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an asynchronous context on an event loop in a thread."""
    ready = Future[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        async with serving as value:
            done = asyncio.Event()
            ready.set_result((value, asyncio.get_running_loop(), done))
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    value, loop, done = ready.result(PATIENCE)
    try:
        yield value
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


@asynccontextmanager
async def accepting(create: transport.Create, listener: socket.socket) -> AsyncIterator[None]:
    """Serve every editor that connects."""
    task = asyncio.create_task(transport._accept(create, listener))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serving_on_socket() -> AsyncIterator[str]:
    """A server on a Unix socket; yields the socket's path."""
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/lsp.sock")
        listener.listen()
        listener.setblocking(False)
        async with accepting(lambda: create_server(EngineSpec({})), listener):
            yield f"{folder}/lsp.sock"


class Local:
    """The protocol in this process, fed with bytes; `sent` are the messages it sends."""

    def __init__(self, *encodings: str) -> None:
        self.server = LanguageServer("test", "1", protocol_cls=DocumentProtocol)
        self.protocol: DocumentProtocol = self.server.protocol  # type: ignore[assignment]
        self.protocol.set_writer(self, include_headers=False)
        self.transport = Mock(get_write_buffer_size=lambda: 0)
        self._reader = MessageReader()
        self.sent: list[Json] = []
        self.send(request(0, "initialize", initialize(*encodings)), notification("initialized", {}))

    def write(self, data: bytes) -> None:
        self.sent.append(json.loads(data))

    def close(self) -> None:
        """See StreamWriter."""

    def is_closing(self) -> bool:
        """See StreamWriter."""
        return False

    def feed(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self.protocol.receive(message)

    def send(self, *messages: object) -> None:
        self.feed(b"".join(map(framed, messages)))

    def open(self, uri: str, text: str, version: int = 1) -> None:
        self.send(notification("textDocument/didOpen", opening(uri, text, version)))

    def change(self, uri: str, version: int, *changes: Json) -> None:
        self.send(notification("textDocument/didChange", changing(uri, version, *changes)))

    def text(self, uri: str) -> str | None:
        document = self.protocol.documents.get(uri)
        return document.text if document else None
