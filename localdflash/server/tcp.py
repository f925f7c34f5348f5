"""The daemon's TCP port for other programs: its settings, and the API key that its requests need.

The key lies in a file that only this user can read, created when a key is first needed.
"""

import os
import secrets
import shlex
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.base.system import owner

MAX_KEY_BYTES = 4096


@dataclass(frozen=True)
class TcpPort:
    """A port next to the Unix socket. `hosts`: names that a request's Host header may have."""

    host: str
    port: int  # 0: any that is free
    key: str
    hosts: Collection[str]
    key_file: Path  # for the user to see

    def asked(self) -> dict[str, object]:
        """Return the body of /listen, without the key, which the engine reads itself."""
        return {"host": self.host, "port": self.port, "hosts": sorted(self.hosts)}

    def told(self, url: str) -> str:
        """Return a line for the user that tells how to send a request to this port, whose address is `url`."""
        key = f'-H "Authorization: Bearer $(cat {shlex.quote(str(self.key_file))})"'
        return f"listening on {url}: curl {key} {url}/v1/models"


def own_key(path: Path) -> str:
    """Return the key in this file, which is created if missing. Two processes get the same key."""
    if not path.exists():
        paths.create_private(path.parent)
        _create(path, secrets.token_urlsafe(32))
    return read_key(path)


def read_key(path: Path) -> str:
    """Return the key in this file; UsageError if it is missing, empty or readable by others."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            data = file.read(MAX_KEY_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the key: {error.strerror}") from None
    if owner.is_open_to_others(about) or not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path}: others may read this key: remove it for a new one, or chmod 600 it")
    key = data.decode("ascii", "replace").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"{path}: not a key: one line of ASCII; remove it for a new one")
    return key


def _create(path: Path, key: str) -> None:
    """Put a complete file in place, unless another process does so first."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()  # of a process with our number that was killed
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
        with suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise LocaldflashError(f"{path}: cannot write the key: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
