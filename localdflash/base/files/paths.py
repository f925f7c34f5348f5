"""Where localdflash keeps its files: the platform's folders, or subfolders of LOCALDFLASH_HOME when that is set.

Asking for a folder touches nothing on disk; `create_private` makes it, for this user alone.
"""

import os
import stat
import sys
from pathlib import Path
from typing import Literal

from platformdirs import PlatformDirs

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.system import owner

HOME_VARIABLE = "LOCALDFLASH_HOME"
TRANSPORT_VARIABLE = "LOCALDFLASH_TRANSPORT"
SUFFIXES: dict[str, str] = {"unix": ".sock", "tcp": ".tcp"}  # of what stands for an engine, by its transport
SOCKET_LIMIT = 104 if sys.platform == "darwin" else 108  # bytes of `sun_path`, the closing zero included


def config_folder() -> Path:
    """Return the folder of settings that the user writes."""
    return _folder("config")


def data_folder() -> Path:
    """Return the folder of what the user would miss: chats, the server's key."""
    return _folder("data")


def cache_folder() -> Path:
    """Return the folder of what can be downloaded or computed again: models, measurements."""
    return _folder("cache")


def runtime_folder() -> Path:
    """Return the folder of sockets and locks, which a reboot empties."""
    return _folder("runtime")


def transport() -> str:
    """Return how an engine and its clients reach each other: "unix", or "tcp" where there are no Unix sockets.

    UsageError if the environment asks for anything else, or for what this system has not.
    """
    given = os.environ.get(TRANSPORT_VARIABLE) or ("tcp" if sys.platform == "win32" else "unix")
    if given not in SUFFIXES:
        raise UsageError(f"{TRANSPORT_VARIABLE}={given!r}: choose unix or tcp")
    if given == "unix" and sys.platform == "win32":
        raise UsageError(f"{TRANSPORT_VARIABLE}=unix: Windows has no Unix sockets: unset it, or choose tcp")
    return given


def transport_of(path: Path) -> str:
    """Return the transport of an engine that listens at this path."""
    return "tcp" if path.suffix == SUFFIXES["tcp"] else "unix"


def engine_socket() -> Path:
    """Return where the daemon listens: a Unix socket, or the file that holds its port and key.

    UsageError if a socket's path is longer than the system allows.
    """
    path = runtime_folder() / f"engine{SUFFIXES[transport()]}"
    if transport_of(path) == "unix" and (length := len(os.fsencode(path))) >= SOCKET_LIMIT:
        raise UsageError(
            f"{path}: {length} bytes, and a socket's path must be shorter than {SOCKET_LIMIT}: set {HOME_VARIABLE} to a"
            " shorter folder"
        )
    return path


def private_socket() -> Path:
    """Return where an engine listens that serves this process alone."""
    return (path := engine_socket()).with_name(f"{os.getpid()}{path.suffix}")  # no longer than the other one


def key_file() -> Path:
    """Return the file of the key that requests over TCP need: directly in LOCALDFLASH_HOME if that is set."""
    home = os.environ.get(HOME_VARIABLE)
    return (_absolute(home) if home else data_folder()) / "api-key"


def engine_log() -> Path:
    """Return the log of a daemon that a client started."""
    return runtime_folder() / "engine.log"


def check_private(folder: Path) -> None:
    """Raise LocaldflashError if others own a folder, may enter it, or could have put a link in its place.

    FileNotFoundError if there is none.
    """
    try:
        about = folder.lstat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LocaldflashError(f"{folder}: cannot use: {error.strerror}; set {HOME_VARIABLE} to move it") from error
    if not stat.S_ISDIR(about.st_mode):
        raise LocaldflashError(f"{folder}: not a folder: remove it, or set {HOME_VARIABLE} to use another one")
    if not owner.is_ours(about):
        raise LocaldflashError(f"{folder}: belongs to someone else: set {HOME_VARIABLE} to use another one")
    if owner.is_open_to_others(about):
        raise LocaldflashError(f"{folder}: open to other users: chmod 700 it")


def create_private(folder: Path) -> Path:
    """Create a folder and its missing parents with mode 0700; folders that exist stay as they are."""
    try:
        missing = [part for part in (folder, *folder.parents) if not part.is_dir()]
        for part in reversed(missing):
            part.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LocaldflashError(f"{folder}: cannot create: {error.strerror}; set {HOME_VARIABLE} to move it") from error
    return folder


def _folder(kind: Literal["config", "data", "cache", "runtime"]) -> Path:
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return _absolute(home) / kind
    folders = PlatformDirs("localdflash", appauthor=False)
    match kind:
        case "config":
            return folders.user_config_path
        case "data":
            return folders.user_data_path
        case "cache":
            return folders.user_cache_path
        case "runtime":
            return _runtime(folders)


def _runtime(folders: PlatformDirs) -> Path:
    """The session's folder; without a session a folder at home, rather than one in a place that all users share."""
    if sys.platform == "linux" and not os.environ.get("XDG_RUNTIME_DIR"):
        session = owner.session_folder()
        return Path(session, "localdflash") if session else folders.user_cache_path / "runtime"
    return folders.user_runtime_path


def _absolute(home: str) -> Path:
    """Refuse a relative LOCALDFLASH_HOME, which would follow the current folder into any repository."""
    folder = Path(os.path.expanduser(home))
    if not folder.is_absolute():
        raise UsageError(f"{HOME_VARIABLE}={home!r} is relative; give an absolute path")
    return folder
