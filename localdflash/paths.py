"""Where localdflash keeps its files: the platform's folders, or subfolders of LOCALDFLASH_HOME when that is set.

Asking for a folder touches nothing on disk; `create_private` makes it, for this user alone.
"""

import os
from pathlib import Path
from typing import Literal

from platformdirs import PlatformDirs

from localdflash.errors import LocaldflashError, UsageError

HOME_VARIABLE = "LOCALDFLASH_HOME"


def config_folder() -> Path:
    """Return the folder of settings that the user writes."""
    return _folder("config")


def data_folder() -> Path:
    """Return the folder of what the user would miss: chats, the server's key."""
    return _folder("data")


def cache_folder() -> Path:
    """Return the folder of what can be fetched or computed again: models, measurements."""
    return _folder("cache")


def runtime_folder() -> Path:
    """Return the folder of sockets and locks, gone after a reboot."""
    return _folder("runtime")


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
            return folders.user_runtime_path


def _absolute(home: str) -> Path:
    """Refuse a relative LOCALDFLASH_HOME: it would follow the working folder into any repository."""
    folder = Path(os.path.expanduser(home))
    if not folder.is_absolute():
        raise UsageError(f"{HOME_VARIABLE}={home!r} is relative; give an absolute path")
    return folder
