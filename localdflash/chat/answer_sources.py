"""Servers that answer a chat: the shared daemon, a private daemon, or a remote server named in the settings."""

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
OnStage = Callable[[str], None]  # gets "starting" or "loading" at every poll; see `server/spawn`
T = TypeVar("T")


class ServerSource(ABC):
    """Server to connect to. `can_restart`: `open` restarts an ended server. `pair`: pair to use, "": the default."""

    can_restart = True
    pair = ""

    @abstractmethod
    async def open(self, say: Say, on_stage: OnStage) -> "Address":
        """Return the address of the server, found or started, once its model is loaded. Cancelling stops the wait."""

    def remember_pair(self, pair: str) -> None:
        """Record the loaded pair, so that a restarted daemon loads it again."""
        self.pair = pair

    async def close(self) -> None:  # noqa: B027 - by default nothing: other clients use the server
        """Stop using the server."""


class SharedDaemon(ServerSource):
    """Daemon that editors and other commands share. `shows_stages`: report stages to `on_stage`, not to `say`."""

    def __init__(self, spec: EngineSpec, *, shows_stages: bool = True) -> None:
        self.spec, self._shows_stages = spec, shows_stages
        self.pair = spec.pair if "pair" in spec.given else ""

    async def open(self, say: Say, on_stage: OnStage) -> "Address":
        """See `ServerSource`."""

        def connect_daemon(say: Say, on_stage: OnStage) -> "Address":
            from localdflash.server.address import Address
            from localdflash.server.spawn import ensure_daemon

            ensure_daemon(self.spec, say, on_stage if self._shows_stages else None)
            return Address(paths.daemon_socket())

        try:
            return await run_in_thread(connect_daemon, say, on_stage)
        except (KeyError, TypeError, ValueError):
            raise LocaldflashError(
                f"{paths.daemon_socket()}: the program that listens here is not localdflash's daemon"
            ) from None

    def remember_pair(self, pair: str) -> None:
        """See `ServerSource`."""
        super().remember_pair(pair)
        self.spec = replace(self.spec, options={**self.spec.options, "pair": pair}, given={*self.spec.given, "pair"})


class PrivateDaemon(SharedDaemon):
    """Daemon that only this process uses, and that exits together with this process."""

    def __init__(self, spec: EngineSpec, *, shows_stages: bool = True) -> None:
        super().__init__(spec, shows_stages=shows_stages)
        self._child: subprocess.Popen[bytes] | None = None

    async def open(self, say: Say, on_stage: OnStage) -> "Address":
        """See `ServerSource`."""

        def start_daemon(say: Say, on_stage: OnStage) -> "Address":
            from localdflash.server import private
            from localdflash.server.address import Address

            self._stop()
            path = paths.private_socket()
            self._child = private.start(self.spec, path, on_stage, None if self._shows_stages else say)
            return Address(path)

        return await run_in_thread(start_daemon, say, on_stage)

    async def close(self) -> None:
        """See `ServerSource`."""
        if self._child:
            await run_in_thread(lambda *_: self._stop(), print, print)

    def _stop(self) -> None:
        from localdflash.server import private

        if self._child:
            private.end(self._child, paths.private_socket())
            self._child = None


class NamedServer(ServerSource):
    """Remote server with OpenAI's API. `model` "": the first model that it lists. `key_file` holds the bearer key."""

    can_restart = False

    def __init__(self, url: str, key_file: Path | None = None, model: str = "") -> None:
        self.url, self.key_file, self.pair = url, key_file, model

    async def open(self, say: Say, on_stage: OnStage) -> "Address":
        """Return the address without connecting: the first request shows whether a server listens there."""
        from localdflash.server.address import Address
        from localdflash.server.tcp import read_key

        return Address.of_url(self.url, read_key(self.key_file) if self.key_file else "")


class _CallerCancellation(Exception):
    """Exception that stops the worker thread after the caller was cancelled."""


async def run_in_thread(work: Callable[[Say, OnStage], T], say: Say, on_stage: OnStage) -> T:
    """Run `work` in a thread and return its result; on cancellation, `work` stops at its next call of `on_stage`."""
    loop, cancelled, future = asyncio.get_running_loop(), threading.Event(), Future[T]()
    future.set_running_or_notify_cancel()

    def on_loop(call: Callable[[str], None], line: str) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(call, line)

    def check_cancelled(stage: str) -> None:
        if cancelled.is_set():
            raise _CallerCancellation
        on_loop(on_stage, stage)

    def run() -> None:
        try:
            future.set_result(work(lambda line: on_loop(say, line), check_cancelled))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="daemon start", daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    finally:
        cancelled.set()
