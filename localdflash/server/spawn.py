"""Connect to the running daemon, or start a daemon while holding a lock, so that only one process starts it."""

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
from localdflash.server.client import Client, find
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.sockets import is_listening

OnStage = Callable[[str], None]  # its argument is "starting" or "loading", or "loading: compiling 3 of 37"
NOTICE_SECONDS = 0.5  # delay before "starting the daemon ..." is printed
POLL_SECONDS = 0.02  # interval of checks whether the daemon is ready
LISTEN_SECONDS = 60.0  # timeout for a started daemon to listen; loading may take longer
STOP_SECONDS = 20.0  # timeout for a daemon to stop
READY = "ok"
OUR_PREFIX = "localdflash: "  # of every message of the command line
PROGRAM = "import sys; from localdflash.cli import main; sys.exit(main())"
FALLBACK_PAIR = Options.pair  # the embedded pair, used if no other pair is installed
STARTING, LOADING = "starting", "loading"
_ERRORS = {kind.exit_code: kind for kind in (LocaldflashError, UsageError, ModelError, OutOfMemory, DeviceError)}


def ensure_daemon(spec: EngineSpec, say: Callable[[str], None], on_stage: OnStage | None = None) -> Client:
    """Return a client of a daemon that has loaded the requested pair; start the daemon or load the pair if necessary.

    `say` prints a line for the user. `on_stage` replaces progress lines; it may raise to stop waiting.
    """
    try:
        return _connect(spec, say, on_stage)
    except EngineDisconnect:  # the daemon reached its idle timeout in the meantime
        return _connect(spec, say, on_stage)


def _connect(spec: EngineSpec, say: Callable[[str], None], on_stage: OnStage | None) -> Client:
    waiting = _Waiting(say, on_stage)
    client = _replace_other_version(_running_or_started(spec, waiting), spec, waiting)
    _load_requested_pair(client, spec, waiting)
    return client


def _load_requested_pair(client: Client, spec: EngineSpec, waiting: "_Waiting") -> None:
    """Load the requested pair if the role has no pair or other options; do nothing without given options or a role."""
    if not (spec.given or spec.role):
        return
    role = {"role": spec.role} if spec.role else {}
    about = _pair_of(client.get("/ps"), spec)
    if not about:
        given = {name: spec.options[name] for name in spec.given}
        _request_load(client, {**given, "pair": spec.pair, **role}, waiting)
        return
    running = about["options"]
    changes = {name: spec.options[name] for name in spec.given if running.get(name) != spec.options[name]}
    if running["pair"] == FALLBACK_PAIR and "pair" not in spec.given and spec.pair != FALLBACK_PAIR:
        changes["pair"] = spec.pair  # installed or configured after the fallback pair was loaded
    if changes:
        other = changes.get("pair")
        values = [f"{name.replace('_', ' ')} {value}" for name, value in sorted(changes.items()) if name != "pair"]
        details = f" ({', '.join(values)})" if values else ""
        waiting.say(f"loading {other}{details} ..." if other else f"reloading the pair{details} ...")
        _request_load(client, {"pair": running["pair"], **changes, **role}, waiting)


def _pair_of(about: dict[str, Any], spec: EngineSpec) -> dict[str, Any]:
    """Return the /ps entry of the pair that a chat names, else of the role's pair, else {}; without a role, all."""
    if not spec.role:
        return about
    entries = [one for one in about["pairs"] if spec.role in one["roles"]]
    if "pair" in spec.given and spec.role == "chat":
        candidates = [*entries, *(one for one in about["pairs"] if not one["roles"])]
        entries = [one for one in candidates if spec.pair in (one["pair"], one["options"]["pair"])] or entries
    return entries[0] if entries else {}


def _request_load(client: Client, body: dict[str, Any], waiting: "_Waiting") -> None:
    """Ask the daemon to load a pair; if a busy chat pair must be unloaded first, print a notice and wait."""
    waiting.pause(LOADING)
    try:
        reply = client.post("/load", {**body, "others": "wait" if body.get("role") == "completion" else "refuse"})
    except ModelBusy as busy:
        waiting.say(f"{busy}; waiting to load {body['pair']} ...")
        reply = client.post("/load", {**body, "others": "wait"})
    waiting.print_notice(reply.get("notice"))


def stop(client: Client) -> None:
    """Ask the daemon to stop and wait until it no longer listens."""
    client.post("/stop", {})
    end = time.monotonic() + STOP_SECONDS
    while find():
        if time.monotonic() > end:
            raise LocaldflashError(f"the daemon did not stop within {STOP_SECONDS:.0f} seconds; kill its process")
        time.sleep(POLL_SECONDS)


def _running_or_started(spec: EngineSpec, waiting: "_Waiting") -> Client:
    """Return a client of the running daemon, or start a daemon while holding the start lock."""
    lock = None
    while True:
        if (client := find()) and _becomes_ready(client, waiting):
            return client
        from filelock import FileLock, Timeout

        if not lock:
            folder = paths.create_private(paths.daemon_socket().parent)
            paths.check_private(folder)
            lock = FileLock(folder / "engine.start.lock", mode=0o600)
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            waiting.pause(STARTING)
            continue
        with held:
            if not is_listening(paths.daemon_socket()):
                _start(spec, waiting)


def _becomes_ready(client: Client, waiting: "_Waiting") -> bool:
    """Wait until the daemon is ready; return False if the daemon exits first, as after a failed load."""
    try:
        while (health := client.health()).get("status") != READY:
            waiting.pause(loading(health))
    except EngineDisconnect:
        return False
    return True


def loading(status: Mapping[str, Any]) -> str:
    """Return the loading stage in a reply of /health or /ps."""
    return f"{LOADING}: {status['doing']}" if status.get("doing") else LOADING


def _start(spec: EngineSpec, waiting: "_Waiting") -> None:
    """Start a daemon, wait until it is ready, and restart it after a GPU crash; raise its error if it exits first."""
    from localdflash.base.machine import gpu_watch

    crashes = gpu_watch.count_crashes()
    while True:
        try:
            _start_once(spec, waiting)
            return
        except LocaldflashError:
            before, crashes = crashes, gpu_watch.count_crashes()
            if not before < crashes <= gpu_watch.MAX_CRASHES:
                raise
        waiting.say("the daemon crashed on a GPU while loading; restarting ...")


def _start_once(spec: EngineSpec, waiting: "_Waiting") -> None:
    log = paths.engine_log()
    began = log.stat().st_size if log.exists() else 0
    child, deadline = _spawn(spec, log), time.monotonic() + LISTEN_SECONDS
    threading.Thread(target=child.wait, daemon=True).start()  # reap the child
    while child.poll() is None:
        if (client := find()) and _becomes_ready(client, waiting):
            waiting.print_notice(client.get("/ps").get("notice"))
            return
        waiting.pause(STARTING)
        if time.monotonic() > deadline and not is_listening(paths.daemon_socket()):
            child.kill()
            child.wait()
            raise LocaldflashError(f"the daemon started but is not accepting connections; see {log}")
    if child.returncode and not is_listening(paths.daemon_socket()):  # no other daemon started meanwhile
        with log.open("rb") as file:
            file.seek(began)
            raise exit_error(child.returncode, last_line(file) or f"the daemon exited without a message; see {log}")


def _spawn(spec: EngineSpec, log: Path) -> "subprocess.Popen[bytes]":
    """Start a daemon in its own session, detached from this process's terminal and working directory."""
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
    """Return the Popen arguments for a detached process that does not import from its working directory."""
    return {"cwd": "/", "env": os.environ | {"PYTHONSAFEPATH": "1"}, **process.detached_options()}


def serve_command(spec: EngineSpec) -> list[str]:
    """Return the `localdflash serve` command line for the requested pair."""
    arguments = [sys.executable, "-P", "-c", PROGRAM, "serve", *(["--role", spec.role] if spec.role else [])]
    for name, value in {**spec.options, "pair": spec.pair}.items():
        option = f"--{name.replace('_', '-')}"
        arguments += [option] if value is True else [] if value in (False, None, "") else [option, str(value)]
    return arguments


def exit_error(code: int, message: str) -> LocaldflashError:
    """Return the error for an engine process that exited with `code` and a last message."""
    if name := process.ending_signal(code):
        return LocaldflashError(f"the engine was killed by {name}: {message}")
    return _ERRORS.get(code, LocaldflashError)(message)


def last_line(file: IO[bytes]) -> str:
    """Return a program's last message, else its last line that is not blank; "" if there is none.

    A library may write after our message: a crash in the clean-up after a lost GPU writes a stack.
    """
    lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(OUR_PREFIX)]
    return (ours or lines or [""])[-1].removeprefix(OUR_PREFIX)


def _replace_other_version(client: Client, spec: EngineSpec, waiting: "_Waiting") -> Client:
    """Replace an idle daemon of another version; raise LocaldflashError if that daemon is busy."""
    about = client.get("/ps")
    theirs = about["version"]
    if theirs == __version__:
        return client
    if about["running"] or about["waiting"]:
        raise LocaldflashError(
            f"the running daemon is busy and has version {theirs} (expected {__version__}); try again later, or run"
            " `localdflash serve --stop`"
        )
    waiting.say(f"replacing the running daemon (version {theirs}) with version {__version__}")
    stop(client)
    return _running_or_started(spec, waiting)


class _Waiting:
    """Reporter of progress while polling the daemon: calls `on_stage`, else prints one line on a terminal."""

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
        """Print the pair's notice, unless `on_stage` is given: then the caller reads the notice from /ps."""
        if notice and not self._on_stage:
            self.say(notice)
