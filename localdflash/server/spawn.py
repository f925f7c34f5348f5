"""A client of the one daemon: the one that runs, or one that is started here.

However many processes ask at once, one of them starts the daemon (under a lock) and the others wait for it. If a daemon
does not come up, the last line of its log is raised here with its exit code.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localdflash.base.errors import (
    DeviceFailed,
    EngineGone,
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

if TYPE_CHECKING:
    from filelock import FileLock

Look = Callable[[str], None]  # gets "starting" or "loading", or "loading: compiling 3 of 37"
NOTICE_SECONDS = 0.5  # seconds before a line says that the engine is being started
POLL_SECONDS = 0.02  # seconds between two looks at whether it is there
LISTEN_SECONDS = 60.0  # seconds until a started daemon must be heard of; it may load for longer
STOP_SECONDS = 20.0  # seconds that a daemon which was told to stop may take
READY = "ok"
PROGRAM = "import sys; from localdflash.cli import main; sys.exit(main())"
FALLBACK_PAIR = Options.pair  # answers where no other pair is here
STARTING, LOADING = "starting", "loading"
_ERRORS = {kind.exit_code: kind for kind in (LocaldflashError, UsageError, ModelError, OutOfMemory, DeviceFailed)}


def connect(spec: EngineSpec, say: Callable[[str], None], look: Look | None = None) -> Client:
    """Return a client of an engine that is loaded as wanted. `say` gets lines for the user.

    While that takes time, `look` is called repeatedly with the reason for waiting; what it raises ends the waiting, and
    lines that say no more than it does are left out.
    """
    try:
        return _connect(spec, say, look)
    except EngineGone:  # it left, idle for long enough, while it was looked at
        return _connect(spec, say, look)


def _connect(spec: EngineSpec, say: Callable[[str], None], look: Look | None) -> Client:
    waiting = _Waiting(say, look)
    client = _of_this_version(_running_or_started(spec, waiting), spec, waiting)
    _load_what_is_given(client, spec, waiting)
    return client


def _load_what_is_given(client: Client, spec: EngineSpec, waiting: "_Waiting") -> None:
    """If the role has no pair yet, or not as the user wants it, have that loaded, after the requests that it has."""
    if not (spec.given or spec.role):
        return
    role = {"role": spec.role} if spec.role else {}
    about = _pair_of(client.get("/ps"), spec)
    if not about:
        given = {name: spec.options[name] for name in spec.given}
        _have_loaded(client, {**given, "pair": spec.pair, **role}, waiting)
        return
    running = about["options"]
    changes = {name: spec.options[name] for name in spec.given if running.get(name) != spec.options[name]}
    if running["pair"] == FALLBACK_PAIR and "pair" not in spec.given and spec.pair != FALLBACK_PAIR:
        changes["pair"] = spec.pair  # pulled, or set, since the fallback was loaded
    if changes:
        other = changes.get("pair")
        told = [f"{name.replace('_', ' ')} {value}" for name, value in sorted(changes.items()) if name != "pair"]
        waiting.say(": ".join([f"The engine loads {other or 'anew'}", *([", ".join(told)] if told else [])]) + " ...")
        _have_loaded(client, {"pair": running["pair"], **changes, **role}, waiting)


def _pair_of(about: dict[str, Any], spec: EngineSpec) -> dict[str, Any]:
    """What /ps says of the pair that is wanted: that of the role, or one that a chat has beside it; or nothing."""
    if not spec.role:
        return about
    of_role = [one for one in about["pairs"] if spec.role in one["roles"]]
    beside = [one for one in about["pairs"] if not one["roles"]]
    if "pair" in spec.given and spec.role == "chat":
        name = spec.pair
        named = [one for one in (*of_role, *beside) if name in (one["pair"], one["options"]["pair"])]
        of_role = named or of_role
    return of_role[0] if of_role else {}


def _have_loaded(client: Client, body: dict[str, Any], waiting: "_Waiting") -> None:
    """Have a pair loaded; where another chat is being answered by one that has to go for it, wait and say so."""
    waiting.look(LOADING)
    try:
        told = client.post("/load", {**body, "others": "wait" if body.get("role") == "completion" else "refuse"})
    except ModelBusy as busy:
        waiting.say(f"{busy}: {body['pair']} is loaded when it is done ...")
        told = client.post("/load", {**body, "others": "wait"})
    waiting.tell(told.get("notice"))


def stop(client: Client) -> None:
    """Ask a daemon to leave, and wait until it no longer listens."""
    client.post("/stop", {})
    end = time.monotonic() + STOP_SECONDS
    while find():
        if time.monotonic() > end:
            raise LocaldflashError("the engine does not stop: kill its process")
        time.sleep(POLL_SECONDS)


def own_version() -> str:
    """Return the installed version of localdflash."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("localdflash")
    except PackageNotFoundError:
        return ""


def _running_or_started(spec: EngineSpec, waiting: "_Waiting") -> Client:
    """Look for a daemon, then start one under the lock; whoever does not get the lock looks again."""
    lock: FileLock | None = None
    while True:
        if (client := find()) and _becomes_ready(client, waiting):
            return client
        from filelock import Timeout

        lock = lock or _start_lock()
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            waiting.look(STARTING)
            continue
        with held:
            if not is_listening(paths.engine_socket()):
                _start(spec, waiting)


def _becomes_ready(client: Client, waiting: "_Waiting") -> bool:
    """Wait while the daemon loads; False if it went away meanwhile, as one does that could not load."""
    try:
        while (told := client.health()).get("status") != READY:
            waiting.look(loading(told))
    except EngineGone:
        return False
    return True


def loading(told: Mapping[str, Any]) -> str:
    """Return the stage of an engine that loads, by what /health or /ps tells."""
    return f"{LOADING}: {told['doing']}" if told.get("doing") else LOADING


def _start(spec: EngineSpec, waiting: "_Waiting") -> None:
    """Start a daemon, anew where a GPU ended it, and wait until it is ready; if it ends before, that is raised."""
    from localdflash.base.machine import gpu_watch

    died = gpu_watch.deaths()
    while True:
        try:
            _start_once(spec, waiting)
            return
        except LocaldflashError:
            before, died = died, gpu_watch.deaths()
            if not before < died <= gpu_watch.MAX_DEATHS:
                raise
        waiting.say("A GPU ended the engine while it was loading: started again ...")


def _start_once(spec: EngineSpec, waiting: "_Waiting") -> None:
    log = paths.engine_log()
    began = log.stat().st_size if log.exists() else 0
    process, patient_until = _spawn(spec, log), time.monotonic() + LISTEN_SECONDS
    threading.Thread(target=process.wait, daemon=True).start()  # so that it does not stay as a zombie
    while process.poll() is None:
        if (client := find()) and _becomes_ready(client, waiting):
            waiting.tell(client.get("/ps").get("notice"))
            return
        waiting.look(STARTING)
        if time.monotonic() > patient_until and not is_listening(paths.engine_socket()):
            process.kill()
            process.wait()
            raise LocaldflashError(f"the engine was started, but does not listen: its log is {log}")
    if process.returncode and not is_listening(paths.engine_socket()):  # `localdflash serve` may have been faster
        raise ended(process.returncode, _last_line(log, began))


def _spawn(spec: EngineSpec, log: Path) -> "subprocess.Popen[bytes]":
    """Start a daemon in a session of its own, without this process's terminal and folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open(os.open(log, flags, 0o600), "ab") as stderr:
        return subprocess.Popen(
            [*serve_command(spec), "--idle", str(spec.idle), "--log", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            **apart(),
        )


def apart() -> dict[str, Any]:
    """Arguments of Popen for a process apart, in a folder of its own, which imports nothing from that folder."""
    return {"cwd": "/", "env": os.environ | {"PYTHONSAFEPATH": "1"}, **process.apart()}


def serve_command(spec: EngineSpec) -> list[str]:
    """Return the command `localdflash serve` with the options that are wanted."""
    arguments = [sys.executable, "-P", "-c", PROGRAM, "serve", *(["--role", spec.role] if spec.role else [])]
    for name, value in {**spec.options, "pair": spec.pair}.items():
        option = f"--{name.replace('_', '-')}"
        arguments += [option] if value is True else [] if value in (False, None, "") else [option, str(value)]
    return arguments


def _last_line(log: Path, began: int) -> str:
    """Return the last line of a daemon's log."""
    with log.open("rb") as file:
        file.seek(began)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return last_line(lines) or f"the engine ended without a word; its log is {log}"


def ended(code: int, said: str) -> LocaldflashError:
    """Return the error for an engine's process that ended with this exit code and these last words."""
    if name := process.ending_signal(code):
        return LocaldflashError(f"the engine was ended by {name}: {said}")
    return _ERRORS.get(code, LocaldflashError)(said)


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that an engine wrote; "" if it wrote none."""
    return next((line for line in reversed(lines) if line.strip()), "").removeprefix("localdflash: ")


def _of_this_version(client: Client, spec: EngineSpec, waiting: "_Waiting") -> Client:
    """Replace an idle daemon of another version; LocaldflashError if it is busy."""
    about = client.get("/ps")
    theirs = about["version"]
    if theirs == own_version():
        return client
    if about["running"] or about["waiting"]:
        raise LocaldflashError(
            f"the engine that runs is of version {theirs}, this is {own_version()}, and it is busy: try again when it"
            " is done, or stop it with `localdflash serve --stop`"
        )
    waiting.say(f"The engine that runs is of version {theirs}: started again as {own_version()}.")
    stop(client)
    return _running_or_started(spec, waiting)


def _start_lock() -> "FileLock":
    from filelock import FileLock

    folder = paths.create_private(paths.engine_socket().parent)
    paths.check_private(folder)
    return FileLock(folder / "engine.start.lock", mode=0o600)


class _Waiting:
    """Waits for the daemon in small steps and calls `look` in each; without one, says so on a terminal if it takes
    long.
    """

    def __init__(self, say: Callable[[str], None], look: Look | None) -> None:
        self._began, self.say, self._look = time.monotonic(), say, look
        self._told = look is not None or not sys.stderr.isatty()

    def look(self, stage: str) -> None:
        """Wait for one step."""
        if self._look:
            self._look(stage)
        if not self._told and time.monotonic() - self._began > NOTICE_SECONDS:
            self._told = True
            self.say("starting the engine ...")
        time.sleep(POLL_SECONDS)

    def tell(self, notice: str | None) -> None:
        """Print the engine's notice on how it runs, unless `look` is given: then the caller reads it from /ps."""
        if notice and not self._look:
            self.say(notice)
