"""History of sent messages: a file with one JSON string per line, newest last; several chats may append to it."""

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.json_file import replace_file
from localdflash.base.files.paths import create_private, data_folder
from localdflash.base.system import descriptor
from localdflash.text.sanitize import sanitize

MAX_MESSAGES = 500
MAX_MESSAGE_CHARS = 20_000  # longer messages are not kept on disk
_MAX_LINES = 2 * MAX_MESSAGES  # a longer file is cut to MAX_MESSAGES
_MAX_FILE_BYTES = 32_000_000
_LOCK_SECONDS = 1.0  # longest wait for another chat that writes the file


def history_file() -> Path:
    """Return the path of the history file."""
    return data_folder() / "chat-history"


class History:
    """Sent messages and the user's position among them. `say` reports errors, in any thread. No path: no file."""

    def __init__(self, path: Path | None, say: Callable[[str], None] = lambda line: None) -> None:
        self._path, self._say = path, say
        self._texts: list[str] | None = None  # None: not read yet
        self._writer: ThreadPoolExecutor | None = None
        self._position: int | None = None  # None: the message being typed
        self._edited: dict[int | None, str] = {}  # texts by position, as the user left them

    def add(self, text: str) -> None:
        """Append a sent message and reset the position to the newest."""
        texts = self._read()
        self._position = None
        self._edited.clear()
        if not text.strip() or (texts and texts[-1] == text):
            return
        texts.append(text)
        del texts[:-MAX_MESSAGES]
        if self._path is not None and len(text) <= MAX_MESSAGE_CHARS:
            self._writer = self._writer or ThreadPoolExecutor(1, "history")
            self._writer.submit(self._write, text)

    def close(self) -> None:
        """Wait until all pending writes are on disk."""
        if self._writer is not None:
            self._writer.shutdown()

    def older(self, current: str) -> str | None:
        """Return the previous message, or None. `current`, the prompt's text, is remembered as a draft."""
        texts = self._read()
        at = len(texts) if self._position is None else self._position
        if self._position is None and texts and texts[-1] == current:
            at -= 1  # already shown
        return self._go_to(at - 1, current) if at > 0 else None

    def newer(self, current: str) -> str | None:
        """Return the next message, finally the unsent draft; None if the draft is already shown."""
        if self._position is None:
            return None
        after = self._position + 1
        return self._go_to(after if after < len(self._read()) else None, current)

    def _go_to(self, to: int | None, current: str) -> str:
        self._edited[self._position] = current
        self._position = to
        return self._edited.get(to, "" if to is None else self._read()[to])

    def _read(self) -> list[str]:
        if self._texts is None:
            self._texts = []
            if self._path is not None:
                try:
                    self._texts = _load(self._path)[-MAX_MESSAGES:]
                except OSError as error:
                    self._disable(error)
        return self._texts

    def _write(self, text: str) -> None:
        from filelock import FileLock, Timeout

        if (path := self._path) is None:
            return
        try:
            create_private(path.parent)
            with FileLock(f"{path}.lock", timeout=_LOCK_SECONDS, mode=0o600):
                _append(path, text)
        except Timeout:
            self._disable(TimeoutError(0, "another chat keeps it locked"))
        except OSError as error:
            self._disable(error)
        except LocaldflashError as error:
            self._path = None
            self._say(str(error))

    def _disable(self, error: OSError) -> None:
        path, self._path = self._path, None  # one report is enough
        self._say(f"{path}: {error.strerror or error}: messages are not remembered after this chat")


def _append(path: Path, text: str) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | descriptor.BASE_FLAGS, 0o600)
    with open(handle, "r+b") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "not a plain file")
        descriptor.set_mode(handle, 0o600)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        has_line_end = file.read(1) in (b"", b"\n")
        file.write((b"" if has_line_end else b"\n") + json.dumps(text).encode("ascii") + b"\n")
    texts = _load(path, _MAX_LINES + 1)
    if len(texts) > _MAX_LINES:
        replace_file(path, "".join(f"{json.dumps(text)}\n" for text in texts[-MAX_MESSAGES:]))
        path.chmod(0o600)


def _load(path: Path, limit: int = MAX_MESSAGES) -> list[str]:
    """Return the newest messages of the file, safe to show."""
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_FILE_BYTES:
            raise OSError(0, "not a history file")
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    texts = []
    for line in lines:
        try:
            text = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(text, str) and text:
            texts.append(sanitize(text))
    return texts[-limit:]
