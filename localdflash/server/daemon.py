"""Daemon: serves the loaded pairs to this user, and optionally over TCP. It never logs prompts or answers."""

import asyncio
import os
import shlex
import shutil
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from localdflash.base.errors import DeviceError, LocaldflashError
from localdflash.base.files import paths
from localdflash.base.system import limits, process, unix_socket
from localdflash.server.activity import Activity
from localdflash.server.api.metrics import Metrics
from localdflash.server.connections import (
    MAX_DESCRIPTORS,
    DescriptorExhaustionHandler,
    ServerConnection,
    waiting_connections,
)
from localdflash.server.engine_spec import ROLES, PairRole
from localdflash.server.engines import PURPOSES, Engines
from localdflash.server.guard import Guard
from localdflash.server.http_app import create_app
from localdflash.server.sockets import BACKLOG, LocalListener, listen_at, lock_of, path_lock, prepare_folder, tcp_socket
from localdflash.server.tcp import TcpPort
from localdflash.server.worker import PairWorker

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from localdflash.models.load_options import Options

GRACE_SECONDS = 5  # how long running answers may take to finish on shutdown, before they get an error
ERROR_SECONDS = 1  # how long the clients may take to read that error
KEEP_ALIVE_SECONDS = 75  # longer than clients reuse idle connections, so that none writes to a closed connection
TICK_SECONDS = 0.2  # interval of checks whether to exit
MAX_LOG_BYTES = 1_000_000  # a larger log is rotated; one old log is kept


@dataclass(frozen=True)
class DaemonSettings:
    """Settings of a daemon. `idle`: idle timeout in seconds (0: none). `log`: file for stderr. `queue`: see PairWorker.

    The daemon loads the pair of `options` first, for `roles`. `other_pairs` has the pairs of the other roles, which are
    loaded at their first request or, if `preload_all`, right after the first pair.
    """

    options: "Options"
    cache_bytes: int | None  # see PairWorker
    queue: int
    disk_bytes: int = 0  # see PairWorker
    idle: float = 0.0
    tcp: TcpPort | None = None
    log: Path | None = None
    roles: Sequence[PairRole] = ROLES
    other_pairs: Mapping[PairRole, str] = field(default_factory=dict)
    preload_all: bool = False
    refuses_unknown: bool = False  # see `AppState`
    private: Path | None = None  # socket path of a private daemon, which serves its parent process and exits with it


def serve(settings: DaemonSettings, say: Callable[[str], None]) -> None:
    """Run the daemon until it exits; AlreadyRunning if another daemon runs. `say` prints a line for the user."""
    path = settings.private or paths.daemon_socket()
    prepare_folder(path)
    limits.allow_descriptors(MAX_DESCRIPTORS)
    with ExitStack() as stack:
        if settings.log:
            _redirect_stderr(settings.log)
        if settings.private:
            stack.callback(lock_of(path).unlink, missing_ok=True)  # the file is of no use to another daemon
        stack.enter_context(path_lock(path))
        local_listener = stack.enter_context(listen_at(path))
        listeners = [local_listener.listener]
        if settings.tcp:
            listeners.append(stack.enter_context(tcp_socket(settings.tcp.host, settings.tcp.port)))
        daemon = Daemon(settings, say, path, local_listener)
        say(_usage_line(path, local_listener))
        if tcp := settings.tcp:
            say(tcp.describe(_url(listeners[1])))
        try:
            asyncio.run(daemon.run(listeners))
        finally:
            daemon.close()


class Daemon:
    """Server process: pair workers, HTTP listeners and exit conditions. `path`: the local socket or port file."""

    def __init__(
        self, settings: DaemonSettings, say: Callable[[str], None], path: Path, local_listener: LocalListener
    ) -> None:
        self._settings, self._say, self._path, self._local_listener = settings, say, path, local_listener
        metrics = Metrics()
        options = settings.options
        first = PairWorker(options, settings.cache_bytes, settings.queue, metrics.observe, settings.disk_bytes)
        others = {role: replace(options, pair=pair, drafter="") for role, pair in settings.other_pairs.items()}
        self._engines = Engines(first, settings.roles, others)
        self._app = create_app(
            self._engines,
            metrics,
            stop=self.stop,
            listen=self.listen,
            refuses_unknown=settings.refuses_unknown,
        )
        self._activity: Activity = self._app.state.shared.activity
        self._servers: list[DaemonListener] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._parent = os.getppid()
        self._error: BaseException | None = None
        self._load_error: BaseException | None = None

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Serve until `stop`; raise a worker's fatal error. `listeners`: the local socket, then the TCP port if any."""
        tcp = [self._settings.tcp] if self._settings.tcp else []
        self._servers = [DaemonListener(self._config(port)) for port in (None, *tcp)]
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(DescriptorExhaustionHandler(self._close_idle_connections, self._say))
        process.on_end_signal(loop, self._on_signal)
        self._engines.start()
        if self._settings.private:
            process.on_parent_exit(lambda: self._on_parent_exit(loop))
        tasks = [asyncio.create_task(work) for work in (self._watch(), self._preload())]
        serving = zip(self._servers, listeners, strict=True)
        await asyncio.gather(*(server.serve([listener]) for server, listener in serving))
        for task in tasks:
            task.cancel()
        if self._error:
            raise self._error

    def stop(self) -> None:
        """Stop accepting connections; exit when running answers finish, or after `GRACE_SECONDS`."""
        self._local_listener.withdraw()  # a new client now starts a daemon, which waits for our exit
        self._app.state.shared.is_stopping = True
        for server in self._servers:
            server.should_exit = True

    async def listen(self, tcp: TcpPort) -> AsyncGenerator[str]:
        """Listen on another TCP port and yield its URL, until the generator is closed or the daemon stops."""
        listener, server = tcp_socket(tcp.host, tcp.port), DaemonListener(self._config(tcp))
        serving = asyncio.create_task(server.serve([listener]))
        self._servers.append(server)
        try:
            yield _url(listener)
            await asyncio.wait([serving])
        finally:
            self._servers.remove(server)
            server.should_exit = True
            self._closing.add(serving)  # running answers get `GRACE_SECONDS`
            serving.add_done_callback(self._closing.discard)

    def close(self) -> None:
        """Stop the engine threads. If a thread does not stop, for example while it loads, exit the process."""
        closing = threading.Thread(target=self._engines.close, daemon=True)
        closing.start()
        closing.join(GRACE_SECONDS)
        if closing.is_alive():
            os._exit(self._error.exit_code if isinstance(self._error, LocaldflashError) else 0)

    def _config(self, tcp: TcpPort | None) -> uvicorn.Config:
        """Return the uvicorn configuration of a TCP port, or of the user's local listener if `tcp` is None."""
        key = self._local_listener.key
        local_app: ASGIApp = Guard(self._app, key=key, is_local=True) if key else self._app
        return uvicorn.Config(
            Guard(self._app, key=tcp.key, hosts=tcp.hosts) if tcp else local_app,
            http=ServerConnection if tcp else OwnConnection,
            backlog=BACKLOG,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # lower levels log every malformed request, and anybody can send those
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS + ERROR_SECONDS,
        )

    def _close_idle_connections(self) -> None:
        """Close idle TCP connections, because any program can open these; if there are none, idle local ones."""
        _, *tcp = self._servers
        for server in tcp if any(waiting_connections(one.server_state.connections) for one in tcp) else self._servers:
            for connection in waiting_connections(server.server_state.connections):
                connection.drop()

    def _on_parent_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the daemon; runs in another thread."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self.stop)

    def _on_signal(self, number: int) -> None:
        if any(server.should_exit for server in self._servers):
            os._exit(128 + number)
        self.stop()

    async def _watch(self) -> None:
        """Load the first pair, then run periodic work until an error, the idle timeout or another exit condition."""
        try:
            await self._load(self._settings.roles[0])
        except Exception as error:
            self._error = error
        while not self._error:
            await asyncio.sleep(TICK_SECONDS)
            self._error = self._fatal_error()
            await self._engines.free_unused()
            await self._switch_to_gpu()
            is_idle = 0 < self._settings.idle <= self._activity.idle_seconds
            is_orphaned = self._settings.private is not None and os.getppid() != self._parent
            # Without its socket file no client finds the daemon.
            if is_idle or is_orphaned or not self._path.exists():
                break
            if self._settings.log:
                _rotate(self._settings.log)
        self.stop()

    async def _preload(self) -> None:
        """Load the other pairs right after the first, if `preload_all`; a request retries a failed load."""
        for role in self._settings.other_pairs if self._settings.preload_all else ():
            try:
                await self._engines.ready(self._settings.roles[0])
                await self._load(role)
            except LocaldflashError as error:
                self._say(f"cannot load the pair for {PURPOSES[role]}: {error}")

    async def _load(self, role: PairRole) -> None:
        loaded = await self._engines.ready(role)
        self._activity.restart()
        self._say(f"{loaded.options.pair} is loaded ({loaded.backend}, {loaded.context} tokens of context)")
        if loaded.notice:
            self._say(loaded.notice)

    async def _switch_to_gpu(self) -> None:
        try:
            for loaded in await self._engines.switch_to_gpu():
                self._say(f"{loaded.options.pair} is loaded again ({loaded.backend}), after a check of the GPU")
        except LocaldflashError as error:
            self._say(f"cannot load the checked pair: {error}")

    def _fatal_error(self) -> BaseException | None:
        if self._engines.device_lost:
            return DeviceError("the daemon lost its GPU (reset or driver failure); restart the daemon")
        # A load error is fatal if it lasts two ticks: another load may replace the failed one.
        before, self._load_error = self._load_error, self._engines.error
        return self._load_error if self._load_error is before else None


class OwnConnection(ServerConnection):
    """HTTP connection on the local listener; a connection of another user is closed before any byte is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection if the peer process belongs to another user."""
        if unix_socket.is_from_other_user(transport.get_extra_info("socket")):
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)


class DaemonListener(uvicorn.Server):
    """uvicorn server of one listening socket, without signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, because the daemon handles signals."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn. Cancel the requests that still run after `GRACE_SECONDS`: each of them answers an error."""
        timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._cancel_requests)
        await super().shutdown(sockets)
        timer.cancel()

    def _cancel_requests(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()


def _usage_line(path: Path, local_listener: LocalListener) -> str:
    """Return a line with the address of the daemon and a curl command to try it."""
    file = shlex.quote(str(path))
    if not local_listener.key:
        return f"listening on {path}: curl --unix-socket {file} http://localhost/v1/models"
    key = f'-H "Authorization: Bearer $(tail -n 1 {file})"'
    url = _url(local_listener.listener)
    return f"listening on {url}, key in {path}: curl {key} {url}/v1/models"


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _redirect_stderr(log: Path) -> None:
    """Append stderr, including the output of native libraries, to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 2)
    os.close(file)


def _rotate(log: Path) -> None:
    """Rotate a log larger than `MAX_LOG_BYTES`; the old log is lost if the disk is full."""
    if os.fstat(2).st_size > MAX_LOG_BYTES:
        with suppress(OSError):
            shutil.copyfile(log, log.with_suffix(".old.log"))
        os.ftruncate(2, 0)
