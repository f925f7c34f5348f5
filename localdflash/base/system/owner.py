"""Whose a file or folder is, and whether others may enter it.

On Windows neither is told by what Python knows of a file: there the access list keeps others out, which a folder made
with mode 0700 has (Python 3.11.10, 3.12.4 or newer) or inherits from the user's profile, and nothing is checked.
"""

import os
import sys


def is_ours(about: os.stat_result) -> bool:
    """Return whether it belongs to this process's user."""
    if sys.platform == "win32":
        return True
    else:
        return about.st_uid == os.getuid()


def is_open_to_others(about: os.stat_result) -> bool:
    """Return whether its mode lets other users read, write or enter it."""
    return sys.platform != "win32" and bool(about.st_mode & 0o077)


def session_folder() -> str:
    """Return the folder of this user's session on Linux; "" where there is none to write to."""
    if sys.platform == "linux" and os.access(folder := f"/run/user/{os.getuid()}", os.W_OK):
        return folder
    return ""
