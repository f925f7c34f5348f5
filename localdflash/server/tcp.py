"""TCP port of the daemon for other programs, and the file with the API key for it, which only the user can read."""

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
    """TCP address to listen on, in addition to the local socket. `hosts`: allowed host names in Host headers."""

    host: str
    port: int  # 0: any free port
    key: str
    hosts: Collection[str]
    key_file: Path  # file of `key`, for `describe`

    def listen_request(self) -> dict[str, object]:
        """Return the body of a /listen request. It lacks the key, because the daemon reads the key file itself."""
        return {"host": self.host, "port": self.port, "hosts": sorted(self.hosts)}

    def describe(self, url: str) -> str:
        """Return a line for the user: the port's URL, and a curl command with the key file."""
        key = f'-H "Authorization: Bearer $(cat {shlex.quote(str(self.key_file))})"'
        return f"listening on {url}: curl {key} {url}/v1/models"


def load_or_create_key(path: Path) -> str:
    """Return the API key in `path`; create a missing file with a new key. Concurrent calls return the same key."""
    if not path.exists():
        paths.create_private(path.parent)
        _create(path, secrets.token_urlsafe(32))
    return read_key(path)


def read_key(path: Path) -> str:
    """Return the key in `path`; UsageError if the file is missing, invalid, or accessible to other users."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            data = file.read(MAX_KEY_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the key: {error.strerror}") from None
    if owner.is_open_to_others(about) or not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path}: readable by other users; run `chmod 600` on it, or delete it to generate a new key")
    key = data.decode("ascii", "replace").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"{path}: invalid API key file (expected one ASCII line); delete it to generate a new key")
    return key


def _create(path: Path, key: str) -> None:
    """Create the key file atomically; if another process creates it first, keep that file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()  # left by a killed process with the same process id
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise LocaldflashError(f"{path}: cannot write the key: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
