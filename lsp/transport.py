"""Connections of editors: stdin and stdout for one editor, a Unix socket or a loopback port for several.

A connection ends when its editor sends `exit`, closes it, dies, or has more than `MAX_BACKLOG_BYTES` unread. A request
begins before the next message is handled, so it sees the document as its client did. Only LSP goes to stdout.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import psutil
from pygls.lsp.server import LanguageServer

from localdflash.base.errors import LocaldflashError
from localdflash.base.system import process, unix_socket
from localdflash.base.system.descriptor import set_blocking
from localdflash.lsp.framing import FramingError, MessageReader
from localdflash.lsp.lsp_server import SuggestionServer
from localdflash.lsp.protocol import PARSE_ERROR, DocumentProtocol

CHUNK_BYTES = 65_536
MAX_BACKLOG_BYTES = 64_000_000  # bytes that a client has not read yet
EDITOR_POLL_SECONDS = 2.0  # seconds between two checks that the editor's process is running
FLUSH_SECONDS = 2.0  # longest wait for an editor to read the last bytes

Create = Callable[[], LanguageServer]
T = TypeVar("T")


def silence_pygls() -> None:
    """Keep pygls's tracebacks of bad messages off stderr; the client gets an error instead."""
    logging.getLogger("pygls").setLevel(logging.CRITICAL + 1)


def serve_stdio(create: Create) -> int:
    """Serve one editor on stdin and stdout. Return the exit code: 0 after `shutdown`, 1 without, 128 + signal."""
    source, sink = _take_stdio()
    return asyncio.run(_until_signal(lambda: _serve_stdio(create, source, sink)))


def serve_socket(create: Create, listener: socket.socket) -> int:
    """Serve every editor that connects, until a signal."""
    asyncio.run(_until_signal(lambda: _accept(create, listener)))
    return 0


async def serve_connection(server: LanguageServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Serve one editor to the end; return the exit code, 1 if it sent no `shutdown`."""
    protocol = server.protocol
    assert isinstance(protocol, DocumentProtocol)
    protocol.set_writer(writer)
    editor = asyncio.create_task(_wait_for_editor_exit(server, protocol.initialized))
    reading = asyncio.create_task(_read(protocol, reader, writer))
    try:
        await asyncio.wait((editor, reading), return_when=asyncio.FIRST_COMPLETED)
        return protocol.exit_code if protocol.exit_code is not None else int(not protocol._shutdown)
    finally:
        for task in (editor, reading):
            task.cancel()
        await asyncio.gather(editor, reading, return_exceptions=True)
        for future in list(protocol._request_futures.values()):
            future.cancel()
        if isinstance(server, SuggestionServer):
            await server.close()
        writer.close()


async def _read(protocol: DocumentProtocol, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    messages = MessageReader()
    with suppress(ConnectionError):
        while chunk := await reader.read(CHUNK_BYTES):
            try:
                for message in messages.feed(chunk):
                    protocol.receive(message)
                    await asyncio.sleep(0)  # a request's handler begins before the next message changes the document
                    stuck = writer.transport.get_write_buffer_size() > MAX_BACKLOG_BYTES
                    if protocol.exit_code is not None or stuck or writer.is_closing():
                        return
            except FramingError as error:
                protocol.refuse(None, PARSE_ERROR, f"{error}; the connection is closed")
                return


async def _wait_for_editor_exit(server: LanguageServer, initialized: asyncio.Event) -> None:
    """Return when the editor's process has ended; never, if this machine cannot see that process."""
    await initialized.wait()
    try:
        editor = psutil.Process(server.process_id or 0)
    except (psutil.Error, ValueError, OverflowError):  # no process id, or one of another namespace (containers)
        editor = psutil.Process()
    with suppress(psutil.NoSuchProcess):
        while editor.is_running() and editor.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(EDITOR_POLL_SECONDS)


async def _until_signal(serve: Callable[[], Awaitable[int]]) -> int:
    """Serve until the end, or until a signal comes."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_DaemonThreads())
    serving = asyncio.ensure_future(serve())
    signals: list[int] = []

    def on_signal(number: int) -> None:
        signals.append(number)
        serving.cancel()

    process.on_end_signal(loop, on_signal)
    try:
        return await serving
    except asyncio.CancelledError:
        return 128 + signals[0]


class _DaemonThreads(ThreadPoolExecutor):
    """Executor of `asyncio.to_thread` with daemon threads: one that waits for an engine must not delay the exit."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        future.set_running_or_notify_cancel()
        threading.Thread(target=run, daemon=True).start()
        return future


async def _accept(create: Create, listener: socket.socket) -> int:
    """Serve every connection in its own task; cancel them all at the end."""
    tasks: set[asyncio.Task[int]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if unix_socket.is_from_other_user(writer.get_extra_info("socket")):
            writer.close()
            return
        task = asyncio.create_task(serve_connection(create(), reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, sock=listener)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return 0


async def _serve_stdio(create: Create, source: int, sink: int) -> int:
    """Serve through threads that copy, because asyncio cannot poll a file, a terminal or /dev/null."""
    server_end, stdio_end = socket.socketpair()
    threading.Thread(target=_copy_in, args=(source, stdio_end), daemon=True).start()
    copying = threading.Thread(target=_copy_out, args=(stdio_end, sink), daemon=True)
    copying.start()
    reader, writer = await asyncio.open_connection(sock=server_end)
    try:
        return await serve_connection(create(), reader, writer)
    finally:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await writer.wait_closed()
        copying.join(FLUSH_SECONDS)


def _take_stdio() -> tuple[int, int]:
    """Return private descriptors of stdin and stdout. From then on other code reads nothing and prints to stderr."""
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise LocaldflashError("stdin or stdout is closed: an editor has a pipe for each")
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        os.dup2(nothing, 1)
    os.close(nothing)
    for descriptor in (source, sink):
        set_blocking(descriptor, True)
    return source, sink


def _copy_in(source: int, connection: socket.socket) -> None:
    with suppress(OSError):
        while chunk := os.read(source, CHUNK_BYTES):
            connection.sendall(chunk)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


def _copy_out(connection: socket.socket, sink: int) -> None:
    with suppress(OSError):
        while chunk := connection.recv(CHUNK_BYTES):
            view = memoryview(chunk)
            while view:
                view = view[os.write(sink, view) :]
    with suppress(OSError):  # the editor reads no more
        connection.shutdown(socket.SHUT_RDWR)
