"""Sources of answers: the shared daemon, a private one, or a remote server named in the settings."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths
from localdflash.server.engine_spec import EngineSpec

if TYPE_CHECKING:
    import subprocess

    from localdflash.server.address import Address

Say = Callable[[str], None]
Look = Callable[[str], None]  # gets "starting" or "loading" again and again, see `localdflash.server.spawn`
T = TypeVar("T")


class ServerSource(ABC):
    """Way to reach a server. `restarts`: `open` may be tried again. `pair`: this chat's; "": the default chat pair."""

    restarts = True
    pair = ""

    @abstractmethod
    async def open(self, say: Say, look: Look) -> "Address":
        """Find or start the server, and wait until its model is loaded. Cancelling this stops the wait."""

    def loaded(self, pair: str) -> None:
        """Record that this pair is loaded: the chat keeps it, and a restarted daemon loads it."""
        self.pair = pair

    async def close(self) -> None:  # noqa: B027 - a server that others use stays
        """Stop using the server."""


class SharedDaemon(ServerSource):
    """Daemon that editors and other commands share. `watched`: the screen shows the stages, so no lines are written."""

    def __init__(self, wanted: EngineSpec, *, watched: bool = True) -> None:
        self.wanted, self._watched = wanted, watched
        self.pair = wanted.pair if "pair" in wanted.given else ""

    async def open(self, say: Say, look: Look) -> "Address":
        """See `ServerSource`."""

        def connected(say: Say, look: Look) -> "Address":
            from localdflash.server.address import Address
            from localdflash.server.spawn import connect

            connect(self.wanted, say, look if self._watched else None)
            return Address(paths.engine_socket())

        try:
            return await run_in_thread(connected, say, look)
        except (KeyError, TypeError, ValueError):
            raise LocaldflashError(f"what listens at {paths.engine_socket()} is no engine of localdflash") from None

    def loaded(self, pair: str) -> None:
        """See `ServerSource`."""
        super().loaded(pair)
        self.wanted = replace(
            self.wanted, options={**self.wanted.options, "pair": pair}, given={*self.wanted.given, "pair"}
        )


class PrivateDaemon(SharedDaemon):
    """Daemon of this process alone, which ends with it."""

    def __init__(self, wanted: EngineSpec, *, watched: bool = True) -> None:
        super().__init__(wanted, watched=watched)
        self._child: subprocess.Popen[bytes] | None = None

    async def open(self, say: Say, look: Look) -> "Address":
        """See `ServerSource`."""

        def started(say: Say, look: Look) -> "Address":
            from localdflash.server import private
            from localdflash.server.address import Address

            self._end()
            path = paths.private_socket()
            self._child = private.start(self.wanted, path, look, None if self._watched else say)
            return Address(path)

        return await run_in_thread(started, say, look)

    async def close(self) -> None:
        """See `ServerSource`."""
        if self._child:
            await run_in_thread(lambda *_: self._end(), print, print)

    def _end(self) -> None:
        from localdflash.server import private

        if self._child:
            private.end(self._child, paths.private_socket())
            self._child = None


class NamedServer(ServerSource):
    """Remote server with OpenAI's API. `model` "": its first model. `key_file` holds the bearer key."""

    restarts = False

    def __init__(self, url: str, key_file: Path | None = None, model: str = "") -> None:
        self.url, self.key_file, self.pair = url, key_file, model

    async def open(self, say: Say, look: Look) -> "Address":
        """See `ServerSource`; whether the server exists shows at the first request."""
        from localdflash.server.address import Address
        from localdflash.server.tcp import read_key

        return Address.of_url(self.url, read_key(self.key_file) if self.key_file else "")


class _CallerCancellation(Exception):
    """Raised in the worker thread after the caller was cancelled."""


async def run_in_thread(work: Callable[[Say, Look], T], say: Say, look: Look) -> T:
    """Run blocking work in a daemon thread and return its result; if cancelled, the work ends at its next check."""
    loop, given_up, done = asyncio.get_running_loop(), threading.Event(), Future[T]()
    done.set_running_or_notify_cancel()

    def on_loop(call: Callable[[str], None], line: str) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(call, line)

    def looked(stage: str) -> None:
        if given_up.is_set():
            raise _CallerCancellation
        on_loop(look, stage)

    def run() -> None:
        try:
            done.set_result(work(lambda line: on_loop(say, line), looked))
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name="engine starts", daemon=True).start()
    try:
        return await asyncio.wrap_future(done)
    finally:
        given_up.set()
