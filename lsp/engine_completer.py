"""Engine of the language server, found at the first request; a failure is reported once."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, NotRequired, Protocol, TypedDict

import msgspec

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.base.files import paths
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.refusals import refusal
from localdflash.server.spawn import connect

RETRY_SECONDS = 5.0


class Timings(TypedDict):
    """Statistics of an answer that are shown."""

    predicted_per_second: NotRequired[float]


class Event(TypedDict):
    """Part of an answer; the last one of its index has a `finish`."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    text: str
    confidence: NotRequired[float | None]
    finish: NotRequired[str]
    tokens: NotRequired[int]
    tau: NotRequired[float]
    timings: NotRequired[Timings]


def decode(data: bytes) -> Event:
    """Decode an event; LocaldflashError if it reports an error or is not an event."""
    try:
        return msgspec.json.decode(data, type=Event)
    except (msgspec.DecodeError, RecursionError):  # which bad UTF-8 is, too
        raise refusal(data, 200) from None


class CompletionSource(Protocol):
    """Connected engine. `model` is its model."""

    model: str

    def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """Yield the events of one completion. Closing the iterator stops the engine."""

    def close(self) -> None:
        """Close the connection."""


class CompletionClient(ABC):
    """Client that finds an engine on the first request. `on_trouble` gets each failure, and "" after it."""

    gone = "the engine ended before its answer did"
    refused_patience = 0.0  # seconds until the next try after an answer that was an error

    def __init__(self, log: Callable[[str], None], on_trouble: Callable[[str], None]) -> None:
        self._log, self._on_trouble = log, on_trouble
        self._source: CompletionSource | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._reported = ""

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """Yield the events of one completion; none if there is no engine. Closing the iterator stops the engine."""
        for _ in range(2):  # an engine that left since the last request is found again
            source = await self._connected()
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
                self._drop()
                if begun:
                    break
            except LocaldflashError as error:
                self._drop()  # it may be another engine meanwhile
                self._fail(str(error), self.refused_patience)
                return
        self._fail(self.gone)

    @abstractmethod
    async def find(self) -> CompletionSource:
        """Find the engine, or start it."""

    @abstractmethod
    async def model(self) -> str:
        """Return the model that answers; "" if there is no engine."""

    def close(self) -> None:
        """Close the connection."""
        if self._connecting:
            self._connecting.cancel()
        self._drop()

    def _drop(self) -> None:
        if self._source:
            self._source.close()
        self._source = None

    async def _connected(self) -> CompletionSource | None:
        """Return a connected engine; None if there is none."""
        if self._source is None and time.monotonic() >= self._not_before:
            self._connecting = self._connecting or asyncio.create_task(self._connect())
            await asyncio.shield(self._connecting)  # who gives up meanwhile leaves it to the next request
        return self._source

    async def _connect(self) -> None:
        try:
            self._source = await self.find()
        except (LocaldflashError, OSError) as error:
            self._fail(str(error))
        finally:
            self._connecting = None

    def _fail(self, line: str, patience: float | None = None) -> None:
        self._not_before = time.monotonic() + (RETRY_SECONDS if patience is None else patience)
        self._report(line)

    def _report(self, line: str) -> None:
        if line != self._reported:
            self._reported = line
            self._on_trouble(line)


class DaemonCompleter(CompletionClient):
    """Client of the daemon on this machine, which is started with the options of `engine`."""

    def __init__(self, engine: EngineSpec, log: Callable[[str], None], on_trouble: Callable[[str], None]) -> None:
        super().__init__(log, on_trouble)
        self._engine = engine
        self.gone = f"{CompletionClient.gone}: its log is {paths.engine_log()}"

    async def find(self) -> CompletionSource:
        """See `CompletionClient`."""
        loop = asyncio.get_running_loop()

        def log(line: str) -> None:
            loop.call_soon_threadsafe(self._log, line)

        try:
            await asyncio.to_thread(connect, self._engine, log)
        except (KeyError, TypeError, ValueError):
            raise LocaldflashError(f"what listens at {paths.engine_socket()} is no engine of localdflash") from None
        return DaemonSource(Address(paths.engine_socket()))

    async def model(self) -> str:
        """See `CompletionClient`."""
        connection = ClientConnection(Address(paths.engine_socket()), decode)
        try:
            return str((await connection.get("/ps?role=completion"))["pair"])
        except (LocaldflashError, KeyError):
            return ""
        finally:
            connection.close()


class DaemonSource:
    """Daemon of localdflash, local or remote, which makes the prompts and ends the texts itself."""

    def __init__(self, address: Address, model: str = "") -> None:
        self.model = model
        self._connection = ClientConnection(address, decode)

    def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """See `CompletionSource`."""
        return self._connection.events("/complete", body)

    def close(self) -> None:
        """See `CompletionSource`."""
        self._connection.close()
