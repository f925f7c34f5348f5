"""Clients by which the language server requests completions from the daemon or a remote server."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, NotRequired, Protocol, TypedDict, TypeVar

import msgspec

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.base.files import paths
from localdflash.code.next_edit.line_changes import LineChange
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.refusals import error_of_response
from localdflash.server.spawn import ensure_daemon

RETRY_SECONDS = 5.0  # from a failure to the next attempt to connect
EventT = TypeVar("EventT")


class Timings(TypedDict):
    """Statistics of an answer for the status line."""

    predicted_per_second: NotRequired[float]


class Event(TypedDict):
    """Part of an answer. `index` is the number of the requested text; that text's last event has a `finish`."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    text: str
    confidence: NotRequired[float | None]
    score: NotRequired[float]  # higher for a likelier text; orders requested texts
    finish: NotRequired[str]
    model: NotRequired[str]  # id of the model that answered
    tokens: NotRequired[int]
    tau: NotRequired[float]  # tokens per verify step
    timings: NotRequired[Timings]
    changes: NotRequired[list[LineChange]]  # of a predicted edit


def decode_event(kind: type[EventT], data: bytes) -> EventT:
    """Decode an event of type `kind`; LocaldflashError if it reports an error or lacks a field."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):  # msgspec raises DecodeError for invalid UTF-8 too
        raise error_of_response(data, status=200) from None


class CompletionSource(Protocol):
    """Connection to a server that completes code."""

    model: str  # display name of the server's model; "" if not known

    def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """Yield the events of one completion. Closing the iterator cancels the request."""

    def close(self) -> None:
        """Close the connection."""


class CompletionClient(ABC):
    """Client of a completion server. `on_trouble` gets each new error, and "" after a success."""

    disconnect_message = "the daemon exited mid-answer"
    model_suffix = ""  # appended to a model's display name: the address of a remote server
    error_retry_seconds = 0.0  # time after an error response in which nothing is requested

    def __init__(self, log: Callable[[str], None], on_trouble: Callable[[str], None]) -> None:
        self._log, self._on_trouble = log, on_trouble
        self._source: CompletionSource | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._reported = ""

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """Yield the events of one completion; report a failure, which ends them. Closing the iterator cancels it."""
        for _ in range(2):  # reconnect once if the server exited since the last request
            source = await self._open_source()
            if source is None:
                return
            begun = False
            try:
                async with aclosing(source.complete(body)) as events:
                    async for event in events:
                        begun = True
                        yield event
                self._report("")
                return
            except EngineDisconnect:
                self._close_source()
                if begun:
                    break
            except LocaldflashError as error:
                self._close_source()  # the next request looks for the server again
                self._report_failure(str(error), self.error_retry_seconds)
                return
        self._report_failure(self.disconnect_message)

    @abstractmethod
    async def find(self) -> CompletionSource:
        """Connect to the server; start the daemon if necessary."""

    async def model(self) -> str:
        """Connect, and return the display name of the server's model; "" if no server is found."""
        source = await self._open_source()
        return f"{source.model}{self.model_suffix}" if source else ""

    def close(self) -> None:
        """Close the connection."""
        if self._connecting:
            self._connecting.cancel()
        self._close_source()

    def _close_source(self) -> None:
        if self._source:
            self._source.close()
        self._source = None

    async def _open_source(self) -> CompletionSource | None:
        """Return the connection, opened if necessary; None if no server is found or the last failure is too recent."""
        if self._source is None and time.monotonic() >= self._retry_at:
            self._connecting = self._connecting or asyncio.create_task(self._connect())
            await asyncio.shield(self._connecting)  # a cancelled request leaves the attempt running
        return self._source

    async def _connect(self) -> None:
        try:
            self._source = await self.find()
        except (LocaldflashError, OSError) as error:
            self._report_failure(str(error))
        finally:
            self._connecting = None

    def _report_failure(self, message: str, delay: float | None = None) -> None:
        self._retry_at = time.monotonic() + (RETRY_SECONDS if delay is None else delay)
        self._report(message)

    def _report(self, message: str) -> None:
        if message != self._reported:
            self._reported = message
            self._on_trouble(message)


class DaemonCompleter(CompletionClient):
    """Client of the daemon on this machine; a missing daemon is started with the options of `engine`."""

    def __init__(self, engine: EngineSpec, log: Callable[[str], None], on_trouble: Callable[[str], None]) -> None:
        super().__init__(log, on_trouble)
        self._engine = engine
        self.disconnect_message = f"{CompletionClient.disconnect_message}; see {paths.engine_log()}"

    async def find(self) -> CompletionSource:
        """See `CompletionClient`."""
        loop = asyncio.get_running_loop()

        def log(line: str) -> None:
            loop.call_soon_threadsafe(self._log, line)

        try:
            await asyncio.to_thread(ensure_daemon, self._engine, log)
        except (KeyError, TypeError, ValueError):
            raise LocaldflashError(f"{paths.daemon_socket()}: another program listens here") from None
        return DaemonSource(Address(paths.daemon_socket()))


class DaemonSource:
    """Daemon, local or remote, which builds the prompts and applies the stop rules."""

    def __init__(self, address: Address, model: str = "") -> None:
        self.model = model
        self._connection = ClientConnection(address, partial(decode_event, Event))

    def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """See `CompletionSource`."""
        return self._connection.events("/complete", body)

    def close(self) -> None:
        """See `CompletionSource`."""
        self._connection.close()
