"""Messages with every field set, and programs that use a store and are killed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.chat.store import ChatStore

QUESTION = Message("user", "Why?", (Attachment("file", "a.py", "x = 1\r\n"), Attachment("paste", "", "\ud83d\ude00")))
ANSWER = Message(
    "assistant",
    "Because.\n```python\nx\x00\n```\n\ud83d\ude00",
    finish="length",
    numbers={"tokens": 3, "tau": 2.5, "draft": True, "accept_by_slot": [0.5, 0.25], "model": "tiny"},
    steps=(StepRecord("dflash", 15, 2, (4, 0, 3), 12.625), StepRecord("", 0, 0, (1,), 1e-3)),
)


def silent(line: str) -> None:
    raise AssertionError(f"unexpected: {line}")


OPENED: list[ChatStore] = []  # closed after each test


def opened(path: Path | None, say: Callable[[str], None] = silent) -> ChatStore:
    store = ChatStore(path, say)
    OPENED.append(store)
    return store


def chat(store: ChatStore, *texts: str, folder: str = "/here") -> int:
    """A chat of these messages, the user's and the model's in turn."""
    session, parent = store.create(folder=folder), None
    for i, text in enumerate(texts):
        parent = store.add(session, parent, Message("assistant" if i % 2 else "user", text)).id
    return session


def texts(store: ChatStore, session: int) -> list[str]:
    return [message.text for message in store.path(session)]


@contextmanager
def program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python with a store's names at hand; it writes what it has done to its stdout. Killed at the end."""
    names = "import sys\nfrom pathlib import Path\n" + "".join(
        f"from localdflash.{module} import {name}\n"
        for module, name in (("chat.messages", "Message"), ("chat.store", "ChatStore"), ("base.errors", "StoreError"))
    )
    command = [sys.executable, "-c", names + code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout
    return process.stdout
