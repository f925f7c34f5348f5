"""Connect to the running daemon, or start one while holding a lock, so that no other process starts another."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from localdflash import __version__
from localdflash.base.errors import (
    DeviceError,
    EngineDisconnect,
    LocaldflashError,
    ModelBusy,
    ModelError,
    OutOfMemory,
    UsageError,
)
from localdflash.base.files import paths
from localdflash.base.system import process
from localdflash.models.load_options import Options
from localdflash.server.client import Client, DaemonHangs, find_daemon
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.sockets import is_listening

OnStage = Callable[[str], None]  # gets "starting", "loading" or "loading: compiling 3 of 37"
NOTICE_SECONDS = 0.5  # delay until "starting the daemon ..." is printed
POLL_SECONDS = 0.02  # interval of checks whether the daemon is ready
LISTEN_SECONDS = 60.0  # timeout for a daemon to listen and respond; there is none for loading
STOP_SECONDS = 20.0  # timeout for a daemon to stop
READY = "ok"
OUR_PREFIX = "localdflash: "  # start of the command line's messages on stderr
PROGRAM = "import sys; from localdflash.cli import main; sys.exit(main())"
FALLBACK_PAIR = Options.pair  # the embedded pair, which runs if no other pair is installed
STARTING, LOADING = "starting", "loading"
_ERRORS = {kind.exit_code: kind for kind in (LocaldflashError, UsageError, ModelError, OutOfMemory, DeviceError)}


def ensure_daemon(spec: EngineSpec, say: Callable[[str], None], on_stage: OnStage | None = None) -> Client:
    """Return a client of a daemon that has loaded the requested pair; start the daemon or load the pair if necessary.

    `say` prints a line for the user. `on_stage` replaces progress lines; it may raise to stop the wait.
    """
    try:
        return _connect(spec, say, on_stage)
    except EngineDisconnect:  # the daemon exited meanwhile, for example after its idle timeout
        return _connect(spec, say, on_stage)


def _connect(spec: EngineSpec, say: Callable[[str], None], on_stage: OnStage | None) -> Client:
    progress = _StartProgress(say, on_stage)
    client = _replace_other_version(_find_or_start(spec, progress), spec, progress)
    _load_requested_pair(client, spec, progress)
    return client


def _load_requested_pair(client: Client, spec: EngineSpec, progress: "_StartProgress") -> None:
    """Load the requested pair unless it is loaded with the given options. Without options and role, do nothing."""
    if not (spec.given or spec.role):
        return
    role = {"role": spec.role} if spec.role else {}
    status = _find_pair_status(client.get("/ps"), spec)
    if not status:
        given = {name: spec.options[name] for name in spec.given}
        _request_load(client, {**given, "pair": spec.pair, **role}, progress)
        return
    running = status["options"]
    changes = {name: spec.options[name] for name in spec.given if running.get(name) != spec.options[name]}
    if running["pair"] == FALLBACK_PAIR and "pair" not in spec.given and spec.pair != FALLBACK_PAIR:
        changes["pair"] = spec.pair  # installed or configured after the fallback pair was loaded
    if changes:
        other = changes.get("pair")
        values = [f"{name.replace('_', ' ')} {value}" for name, value in sorted(changes.items()) if name != "pair"]
        details = f" ({', '.join(values)})" if values else ""
        progress.say(f"loading {other}{details} ..." if other else f"reloading the pair{details} ...")
        _request_load(client, {"pair": running["pair"], **changes, **role}, progress)


def _find_pair_status(status: dict[str, Any], spec: EngineSpec) -> dict[str, Any]:
    """Return the entry in a reply of /ps of the pair that a chat names, else of the role's pair; {} if missing."""
    if not spec.role:
        return status  # starts with the fields of the main role's pair
    entries = [one for one in status["pairs"] if spec.role in one["roles"]]
    if "pair" in spec.given and spec.role == "chat":
        candidates = [*entries, *(one for one in status["pairs"] if not one["roles"])]
        entries = [one for one in candidates if spec.pair in (one["pair"], one["options"]["pair"])] or entries
    return entries[0] if entries else {}


def _request_load(client: Client, body: dict[str, Any], progress: "_StartProgress") -> None:
    """Let the daemon load a pair. If it must first unload a pair that is answering a chat, say so and wait."""
    progress.pause(LOADING)
    try:
        reply = client.post("/load", {**body, "others": "wait" if body.get("role") == "completion" else "refuse"})
    except ModelBusy as busy:
        progress.say(f"{busy}; waiting to load {body['pair']} ...")
        reply = client.post("/load", {**body, "others": "wait"})
    progress.print_notice(reply.get("notice"))


def stop(client: Client) -> None:
    """Ask the daemon to stop, then wait until it no longer listens."""
    client.post("/stop", {})
    end = time.monotonic() + STOP_SECONDS
    while find_daemon():
        if time.monotonic() > end:
            raise LocaldflashError(f"the daemon did not stop within {STOP_SECONDS:.0f} seconds; kill its process")
        time.sleep(POLL_SECONDS)


def _find_or_start(spec: EngineSpec, progress: "_StartProgress") -> Client:
    """Return a client of the running daemon; if there is none, start a daemon while holding the start lock."""
    lock, deadline = None, time.monotonic() + LISTEN_SECONDS
    while True:
        if (client := _find_until(deadline)) and _wait_until_ready(client, progress):
            return client
        from filelock import FileLock, Timeout

        if not lock:
            folder = paths.create_private(paths.daemon_socket().parent)
            paths.check_private(folder)
            lock = FileLock(folder / "engine.start.lock", mode=0o600)
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            progress.pause(STARTING)
            continue
        with held:
            if not is_listening(paths.daemon_socket()):
                _start(spec, progress)
                continue
        progress.pause(STARTING)


def _find_until(deadline: float) -> Client | None:
    """Return a client of the running daemon, or None; DaemonHangs only after the deadline."""
    try:
        return find_daemon()
    except DaemonHangs:
        if time.monotonic() > deadline:
            raise
    return None


def _wait_until_ready(client: Client, progress: "_StartProgress") -> bool:
    """Wait until the daemon is ready, and return True; False if it exits before, for example after a failed load."""
    try:
        while (health := client.health()).get("status") != READY:
            progress.pause(loading_stage(health))
    except EngineDisconnect:
        return False
    return True


def loading_stage(status: Mapping[str, Any]) -> str:
    """Return the stage for `OnStage` from a reply of /health or /ps."""
    return f"{LOADING}: {status['doing']}" if status.get("doing") else LOADING


def _start(spec: EngineSpec, progress: "_StartProgress") -> None:
    """Start a daemon and wait until it is ready. If it exits, raise its error, or start it again after a GPU crash."""
    from localdflash.base.machine import gpu_watch

    crashes = gpu_watch.count_crashes()
    while True:
        try:
            _start_once(spec, progress)
            return
        except LocaldflashError:
            before, crashes = crashes, gpu_watch.count_crashes()
            if not before < crashes <= gpu_watch.MAX_CRASHES:
                raise
        progress.say("the daemon crashed on a GPU while loading; restarting ...")


def _start_once(spec: EngineSpec, progress: "_StartProgress") -> None:
    log = paths.engine_log()
    began = log.stat().st_size if log.exists() else 0
    child, deadline = _spawn(spec, log), time.monotonic() + LISTEN_SECONDS
    threading.Thread(target=child.wait, daemon=True).start()  # reap the child
    while child.poll() is None:
        if (client := _find_until(deadline)) and _wait_until_ready(client, progress):
            progress.print_notice(client.get("/ps").get("notice"))
            return
        progress.pause(STARTING)
        if time.monotonic() > deadline and not is_listening(paths.daemon_socket()):
            child.kill()
            child.wait()
            raise LocaldflashError(f"the daemon started but is not accepting connections; see {log}")
    if child.returncode and not is_listening(paths.daemon_socket()):  # no other daemon started meanwhile
        with log.open("rb") as file:
            file.seek(began)
            raise exit_error(child.returncode, last_line(file) or f"the daemon exited without a message; see {log}")


def _spawn(spec: EngineSpec, log: Path) -> "subprocess.Popen[bytes]":
    """Start a daemon process, detached from this process's terminal, session and working directory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open(os.open(log, flags, 0o600), "ab") as stderr:
        return subprocess.Popen(
            [*serve_command(spec), "--idle", str(spec.idle), "--log", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            **detached_process_options(),
        )


def detached_process_options() -> dict[str, Any]:
    """Return Popen arguments for a detached process that imports no module from its working directory."""
    return {"cwd": "/", "env": os.environ | {"PYTHONSAFEPATH": "1"}, **process.detached_options()}


def serve_command(spec: EngineSpec) -> list[str]:
    """Return the command line of `localdflash serve` for the requested pair and options."""
    arguments = [sys.executable, "-P", "-c", PROGRAM, "serve", *(["--role", spec.role] if spec.role else [])]
    for name, value in {**spec.options, "pair": spec.pair}.items():
        option = f"--{name.replace('_', '-')}"
        arguments += [option] if value is True else [] if value in (False, None, "") else [option, str(value)]
    return arguments


def exit_error(code: int, message: str) -> LocaldflashError:
    """Return the error for a daemon that exited with this code and last message."""
    if name := process.ending_signal(code):
        return LocaldflashError(f"the daemon was killed by {name}: {message}")
    return _ERRORS.get(code, LocaldflashError)(message)


def last_line(file: IO[bytes]) -> str:
    """Return the last message of localdflash in a log, else the last line that is not blank, or "".

    Libraries may write lines after the message, for example a stack trace if the clean-up after a lost GPU crashes.
    """
    lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(OUR_PREFIX)]
    return (ours or lines or [""])[-1].removeprefix(OUR_PREFIX)


def _replace_other_version(client: Client, spec: EngineSpec, progress: "_StartProgress") -> Client:
    """Replace an idle daemon of another version; raise LocaldflashError if that daemon is busy."""
    status = client.get("/ps")
    theirs = status["version"]
    if theirs == __version__:
        return client
    if status["running"] or status["waiting"]:
        raise LocaldflashError(
            f"the running daemon is busy and has version {theirs} (expected {__version__}); try again later, or run"
            " `localdflash serve --stop`"
        )
    progress.say(f"replacing the running daemon (version {theirs}) with version {__version__}")
    stop(client)
    return _find_or_start(spec, progress)


class _StartProgress:
    """Reporter of progress while the daemon is polled: it calls `on_stage`, or else prints one line on a terminal."""

    def __init__(self, say: Callable[[str], None], on_stage: OnStage | None) -> None:
        self._began, self.say, self._on_stage = time.monotonic(), say, on_stage
        self._reported = on_stage is not None or not sys.stderr.isatty()

    def pause(self, stage: str) -> None:
        """Report the stage and sleep for one polling interval."""
        if self._on_stage:
            self._on_stage(stage)
        if not self._reported and time.monotonic() - self._began > NOTICE_SECONDS:
            self._reported = True
            self.say("starting the daemon ...")
        time.sleep(POLL_SECONDS)

    def print_notice(self, notice: str | None) -> None:
        """Print the pair's notice, unless there is an `on_stage`: such a caller reads the notice from /ps."""
        if notice and not self._on_stage:
            self.say(notice)
