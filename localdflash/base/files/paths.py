"""Paths of localdflash's files: in the platform's folders, or in subfolders of LOCALDFLASH_HOME if that is set."""

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
SUFFIXES = {"unix": ".sock", "tcp": ".tcp"}  # suffix of the daemon's socket or port file, by transport
SOCKET_LIMIT = 104 if sys.platform == "darwin" else 108  # bytes of `sun_path`, including the final zero


def config_folder() -> Path:
    """Return the folder of the user's settings."""
    return _folder("config")


def data_folder() -> Path:
    """Return the folder of data that cannot be recreated: chats, the server's key."""
    return _folder("data")


def cache_folder() -> Path:
    """Return the folder of data that can be recreated: models, measurements."""
    return _folder("cache")


def runtime_folder() -> Path:
    """Return the folder of sockets, locks and the daemon's log."""
    return _folder("runtime")


def transport() -> str:
    """Return the transport between daemon and clients, "unix" or "tcp"; UsageError if TRANSPORT_VARIABLE is invalid."""
    name = os.environ.get(TRANSPORT_VARIABLE) or ("tcp" if sys.platform == "win32" else "unix")
    if name not in SUFFIXES:
        raise UsageError(f"{TRANSPORT_VARIABLE}: unknown transport {name!r} (expected unix or tcp)")
    if name == "unix" and sys.platform == "win32":
        raise UsageError(f"{TRANSPORT_VARIABLE}=unix: Windows has no Unix sockets; unset it, or choose tcp")
    return name


def transport_of(path: Path) -> str:
    """Return the transport of a daemon that listens at this path."""
    return "tcp" if path.suffix == SUFFIXES["tcp"] else "unix"


def daemon_socket() -> Path:
    """Return the path of the daemon's Unix socket, or of the file with its TCP port and key; UsageError if too long."""
    path = runtime_folder() / f"engine{SUFFIXES[transport()]}"
    if transport_of(path) == "unix" and (length := len(os.fsencode(path))) >= SOCKET_LIMIT:
        raise UsageError(
            f"{path}: the socket's path is too long (expected less than {SOCKET_LIMIT} bytes, got {length});"
            f" set {HOME_VARIABLE} to a shorter folder"
        )
    return path


def private_socket() -> Path:
    """Return the path of the socket, or port file, of this process's private daemon."""
    return (path := daemon_socket()).with_name(f"{os.getpid()}{path.suffix}")


def key_file() -> Path:
    """Return the file of the API key for TCP, directly in LOCALDFLASH_HOME if that is set."""
    home = os.environ.get(HOME_VARIABLE)
    return (_absolute(home) if home else data_folder()) / "api-key"


def engine_log() -> Path:
    """Return the log of a daemon that a client started."""
    return runtime_folder() / "engine.log"


def check_private(folder: Path) -> None:
    """Raise LocaldflashError unless only this user can access a folder, FileNotFoundError if it is missing."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LocaldflashError(f"{folder}: cannot use: {error.strerror}; set {HOME_VARIABLE} to move it") from error
    if not stat.S_ISDIR(status.st_mode):
        raise LocaldflashError(f"{folder}: not a folder; remove it, or set {HOME_VARIABLE} to use another one")
    if not owner.is_ours(status):
        raise LocaldflashError(f"{folder}: belongs to another user; set {HOME_VARIABLE} to use another one")
    if owner.is_open_to_others(status):
        raise LocaldflashError(f"{folder}: open to other users; run `chmod 700` on it")


def create_private(folder: Path) -> Path:
    """Create a folder and its missing parents with mode 0700; existing folders keep their mode."""
    try:
        missing = [part for part in (folder, *folder.parents) if not part.is_dir()]
        for part in reversed(missing):
            part.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LocaldflashError(f"{folder}: cannot create: {error.strerror}; set {HOME_VARIABLE} to move it") from error
    return folder


def nearest_folder(path: Path) -> Path:
    """Return a path if it is a folder, else its nearest parent that is one."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _folder(kind: Literal["config", "data", "cache", "runtime"]) -> Path:
    if home := os.environ.get(HOME_VARIABLE):
        return _absolute(home) / kind
    folders = PlatformDirs("localdflash", appauthor=False)
    if kind == "runtime" and sys.platform == "linux" and not os.environ.get("XDG_RUNTIME_DIR"):
        session = owner.session_folder()  # platformdirs would fall back to /tmp, which all users share
        return Path(session, "localdflash") if session else folders.user_cache_path / "runtime"
    path: Path = getattr(folders, f"user_{kind}_path")
    return path


def _absolute(home: str) -> Path:
    """Return LOCALDFLASH_HOME as a path; UsageError if it is relative: an untrusted repository could contain it."""
    folder = Path(os.path.expanduser(home))
    if not folder.is_absolute():
        raise UsageError(f"{HOME_VARIABLE}: {home!r} is relative; give an absolute path")
    return folder
