"""The same payloads wherever else a text comes from: models, servers, errors, files, the clipboard, earlier chats.

Each place is driven by keys on a real pseudo-terminal. A payload stands between marks such as b07 and e07; marks have
to be on the screen, and nothing may be written that a harmless walk through the same screens does not write.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator

import pytest

from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from localdflash.cli.chat_command import chats_file
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.terminal import Terminal
from tests.security.terminal_payloads import ALL, UNSAFE
from tests.support.chats import Scene, ask, scene
from tests.support.escape_sequences import invisible, sequences

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")]
ROWS, FEW, COLUMNS = 120, 40, 140
OWN_BELL = re.compile(rb"(?<=\x1b\[\?2026l)\x07+")  # Textual rings between two frames, never in one
MARKED = [f"b{number:02}{payload}e{number:02}" for number, payload in enumerate(ALL)]


def grouped(size: int) -> list[str]:
    """Return all marked payloads, joined in groups of this size."""
    return [" ".join(MARKED[at : at + size]) for at in range(0, len(MARKED), size)]


def first(group: str) -> str:
    return group[:3]


def command(terminal: Terminal, line: str, until: str) -> None:
    """Send a command and wait for what it shows."""
    terminal.type(line)
    terminal.wait_for(line)
    terminal.press("enter")
    terminal.wait_for(until)


@pytest.fixture(scope="module")
def harmless() -> Iterator[set[str]]:
    """The kinds of sequences of a walk through all screens."""
    with pytest.MonkeyPatch.context() as patch, scene(patch) as chats:
        chats.answers(Answer.of("# Harmless\n\n```python\nx = 1\n```\n"))
        (chats.folder / "file.py").write_text("x = 1\n")
        terminal = chats.start(rows=FEW, cols=COLUMNS)
        ask(terminal, "a question", "x = 1")
        for key in ("f1", "ctrl+o", "ctrl+l", "ctrl+p", "f2", "f3", "f6"):
            terminal.press(key)
            terminal.settle(0.1)
            terminal.press("escape")
            terminal.settle(0.1)
        terminal.type("@file")
        terminal.wait_for("file.py")
        yield {one.kind for one in sequences(bytes(terminal.raw))}


def model_and_notice(chats: Scene) -> Terminal:
    terminal = start(chats, FEW)
    for group in grouped(12):
        chats.engine.about = {"pair": group, "notice": f"notice {group}"}
        command(terminal, "/model other", first(group))
        terminal.settle(0.05)
        command(terminal, "/new", "Ask something")
    return terminal


def errors(chats: Scene) -> Terminal:
    terminal = start(chats, FEW)
    for number, group in enumerate(grouped(12)):
        refused = Answer(status=503, message=group, code="queue_full")
        chats.answers(refused if number % 2 else Answer.pieces("words ", end="error", message=group))
        ask(terminal, "go", first(group))
        command(terminal, "/new", "Ask something")
    return terminal


def pasted(chats: Scene) -> Terminal:
    terminal = start(chats, FEW)
    for group in grouped(9):
        terminal.paste(group.replace("\x1b[201~", ""))  # a terminal does not let it through
        terminal.wait_for(group[-3:])
        terminal.press("enter")
        terminal.wait_for("Ask something")
    terminal.press("up")
    return terminal


def file_names(chats: Scene) -> Terminal:
    """Those with markup are suggested as they are; those with what nobody sees are not suggested at all."""
    for marked in MARKED:
        (chats.folder / marked.replace("/", "_").replace("\0", "_")).write_text("x = 1\n")
    for number, raw in enumerate((b"\x9b2J", b"\x9d0;pwned\x9c", b"\xff\xfe")):
        with open(os.path.join(os.fsencode(chats.folder), b"raw%d" % number + raw), "wb") as file:
            file.write(b"x = 1\n")
    terminal = start(chats, FEW)
    terminal.type("@b")
    terminal.wait_for("b92[_x]e92")
    for number in range(0, len(MARKED), 5):
        terminal.type(f"{number:02}")
        terminal.settle(0.1)
        terminal.press("backspace", "backspace")
    for wanted in ("@raw", "@b95"):
        terminal.press("escape", "ctrl+u")
        terminal.wait_for("Ask something")
        terminal.type(wanted)
        terminal.settle(0.2)
    assert "b95[@click=app.quit]quit[_]e95" in terminal.text
    terminal.press("tab")
    ask(terminal, "look", "Nothing.")
    return terminal


def earlier_chats(chats: Scene) -> Terminal:
    store = ChatStore.open(chats_file(), print)
    for marked in MARKED:
        number = store.create(folder=marked, model=marked, title=marked)
        question = store.add(number, None, Message("user", marked))
        store.add(number, question.id, Message("assistant", marked, finish="stop", numbers={"model": marked}))
    store.close()
    terminal = start(chats)
    terminal.press("ctrl+o")
    terminal.wait_for("e100")
    terminal.press("enter")
    terminal.settle()
    return terminal


def proposed_changes(chats: Scene) -> Terminal:
    (chats.folder / "a.py").write_text("x = 1\n")
    body = "\n".join(MARKED)
    chats.answers(
        Answer.of(f"`{MARKED[0]}.py`\n\n```python\n{body}\n```\n\n`a.py`\n\n```python\n{body}\n```\n\nEnd.\n")
    )
    terminal = start(chats)
    ask(terminal, "change it", "End.")
    terminal.press("f6")
    terminal.settle()
    return terminal


def start(chats: Scene, rows: int = ROWS) -> Terminal:
    return chats.start(rows=rows, cols=COLUMNS)


PLACES: list[Callable[[Scene], Terminal]] = [
    model_and_notice,
    errors,
    pasted,
    file_names,
    earlier_chats,
    proposed_changes,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_all_payloads_in_a_place(
    place: Callable[[Scene], Terminal], harmless: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scene(monkeypatch) as chats:
        terminal = place(chats)
        terminal.settle(0.2)
        raw = OWN_BELL.sub(b"", bytes(terminal.raw))
        assert terminal.child.isalive(), terminal.told("the chat has ended")
        assert [one for one in sequences(raw) if one.kind not in harmless] == []
        assert invisible(raw.decode()) == set()
        assert "MarkupError" not in terminal.text


def test_an_answer_for_a_script_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every payload, split at every place."""
    splits = [(payload[:at], payload[at:]) for payload in UNSAFE for at in range(len(payload) + 1)]
    halves = [half for before, after in splits for half in (f"x{before}", f"{after}y\n")]
    with scene(monkeypatch, Answer.pieces(*halves)) as chats:
        terminal = chats.start("-p", "go", ready=False)
        assert terminal.wait() == 0
        printed = bytes(terminal.raw)
    assert printed.count(b"\r\n") >= len(splits)
    assert sequences(printed) == []
    assert invisible(printed.decode()) == set()
    assert [payload for payload in UNSAFE if f"x{payload}y".encode() in printed] == []
