"""The daemon as the language server uses it: one generation at a time, its text growing on the event loop.

The daemon is started if it is missing and found again if it went away. A failure is reported once, not for every key:
until it is over there is nothing to suggest, and the next try waits `PATIENCE` seconds.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from localdflash.errors import EngineGone, LocaldflashError
from localdflash.files import paths
from localdflash.lsp.events import Event, decode
from localdflash.server.address import Address
from localdflash.server.spawn import connect
from localdflash.server.stream import Connection
from localdflash.server.wanted import Wanted

PATIENCE = 5.0  # seconds


class Completer:
    """Connects on the first request. `tell` is called with what is wrong, and with "" when all is well again."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self._wanted, self._say, self._tell_changes = wanted, say, tell
        self._connection: Connection[Event] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._told = ""

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """The events of one completion; none if there is no engine. Closing the iterator stops the engine."""
        for _ in range(2):  # a daemon that left since the last request is started again
            connection = await self._connected()
            if connection is None:
                return
            begun = False
            try:
                async with aclosing(connection.events("/complete", body)) as events:
                    async for event in events:
                        begun = True
                        yield event
                self._tell("")
                return
            except EngineGone:
                self._connection = None
                if begun:
                    break
            except LocaldflashError as error:
                self._connection = None  # it may be another daemon meanwhile
                self._tell(str(error))
                return
        self._fail(f"the engine ended before its answer did: its log is {paths.engine_log()}")

    async def model(self) -> str:
        """The pair that is loaded; "" if there is no engine."""
        connection = _connection()
        try:
            return str((await connection.get("/ps?role=completion"))["pair"])
        except (LocaldflashError, KeyError):
            return ""
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connecting:
            self._connecting.cancel()
        if self._connection:
            self._connection.close()

    async def _connected(self) -> Connection[Event] | None:
        """A connection to a daemon that is loaded as wanted; it is started if there is none."""
        if self._connection is None and time.monotonic() >= self._not_before:
            self._connecting = self._connecting or asyncio.create_task(self._connect())
            await asyncio.shield(self._connecting)  # who gives up meanwhile leaves it to the next request
        return self._connection

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()

        def say(line: str) -> None:
            loop.call_soon_threadsafe(self._say, line)

        try:
            await asyncio.to_thread(connect, self._wanted, say)
            self._connection = _connection()
        except (LocaldflashError, OSError) as error:
            self._fail(str(error))
        except (KeyError, TypeError, ValueError):
            self._fail(f"what listens at {paths.engine_socket()} is no engine of localdflash")
        finally:
            self._connecting = None

    def _fail(self, line: str) -> None:
        self._not_before = time.monotonic() + PATIENCE
        self._tell(line)

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._tell_changes(line)


def _connection() -> Connection[Event]:
    return Connection(Address(paths.engine_socket()), decode)
