"""Owner and mode of files and folders. On Windows, which has access lists instead, every file counts as private."""

import os
import sys


def is_ours(status: os.stat_result) -> bool:
    """Return whether a file belongs to this process's user."""
    if sys.platform == "win32":
        return True
    else:
        return status.st_uid == os.getuid()


def is_open_to_others(status: os.stat_result) -> bool:
    """Return whether a file's mode lets other users read, write or enter it."""
    return sys.platform != "win32" and bool(status.st_mode & 0o077)


def session_folder() -> str:
    """Return the folder of this user's session on Linux; "" if it is missing or not writable."""
    if sys.platform == "linux" and os.access(folder := f"/run/user/{os.getuid()}", os.W_OK):
        return folder
    return ""
