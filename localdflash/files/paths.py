"""Where localdflash keeps its files: the platform's folders, or subfolders of LOCALDFLASH_HOME when that is set.

Asking for a folder touches nothing on disk; `create_private` makes it, for this user alone.
"""

import os
import stat
import sys
from pathlib import Path
from typing import Literal

from platformdirs import PlatformDirs

from localdflash.errors import LocaldflashError, UsageError

HOME_VARIABLE = "LOCALDFLASH_HOME"
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


def engine_socket() -> Path:
    """Return the socket of the daemon; UsageError if its path is longer than the system allows."""
    path = runtime_folder() / "engine.sock"
    if (length := len(os.fsencode(path))) >= SOCKET_LIMIT:
        raise UsageError(
            f"{path}: {length} bytes, and a socket's path must be shorter than {SOCKET_LIMIT}: set {HOME_VARIABLE} to a"
            " shorter folder"
        )
    return path


def private_socket() -> Path:
    """Return the socket of an engine that serves this process alone."""
    return engine_socket().with_name(f"{os.getpid()}.sock")  # no longer than the other one


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
    if about.st_uid != os.getuid():
        raise LocaldflashError(f"{folder}: belongs to someone else: set {HOME_VARIABLE} to use another one")
    if about.st_mode & 0o077:
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
    if sys.platform.startswith("linux") and not os.environ.get("XDG_RUNTIME_DIR"):
        session = Path(f"/run/user/{os.getuid()}")
        return session / "localdflash" if os.access(session, os.W_OK) else folders.user_cache_path / "runtime"
    return folders.user_runtime_path


def _absolute(home: str) -> Path:
    """Refuse a relative LOCALDFLASH_HOME, which would follow the current folder into any repository."""
    folder = Path(os.path.expanduser(home))
    if not folder.is_absolute():
        raise UsageError(f"{HOME_VARIABLE}={home!r} is relative; give an absolute path")
    return folder
