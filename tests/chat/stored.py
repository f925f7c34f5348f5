"""Messages with all fields, stores that are closed after the test, and programs that use a store."""

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


def fail_on_notice(line: str) -> None:
    raise AssertionError(f"unexpected: {line}")


OPEN_STORES: list[ChatStore] = []  # closed after each test


def open_store(path: Path | None, say: Callable[[str], None] = fail_on_notice) -> ChatStore:
    store = ChatStore(path, say)
    OPEN_STORES.append(store)
    return store


def chat(store: ChatStore, *texts: str, folder: str = "/here") -> int:
    """Add a chat with these messages, alternately the user's and the model's; return its id."""
    session, parent = store.create(folder=folder), None
    for i, text in enumerate(texts):
        parent = store.add(session, parent, Message("assistant" if i % 2 else "user", text)).id
    return session


def texts(store: ChatStore, session: int) -> list[str]:
    return [message.text for message in store.branch(session)]


@contextmanager
def run_program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python code with the names of a store imported; kill it at the end."""
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
